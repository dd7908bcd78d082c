/* The border between the generated tables of a library and the fixed runtime. Private: callers see only the
 * generated public header. The first part declares the few structures of TVM's kernel ABI that kernels use. */
#ifndef TG_RUNTIME_H
#define TG_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

/* TG_AMALGAMATION: everything is one C file, written by export for toolchains that want source. */
#if defined(TG_AMALGAMATION) && defined(__GNUC__)
#define TG_HIDDEN static __attribute__((unused))
#define TG_PUBLIC
#elif defined(TG_AMALGAMATION)
#define TG_HIDDEN static
#define TG_PUBLIC
#elif defined(__GNUC__)
#define TG_HIDDEN __attribute__((visibility("hidden")))
#define TG_PUBLIC __attribute__((visibility("default")))
#else
#define TG_HIDDEN
#define TG_PUBLIC
#endif

/* ---- kernel ABI (tagged value, packed call, parallel launch) ---- */

typedef struct {
  int32_t type_index; /* TGRT_POINTER */
  int32_t zero;
  union {
    int64_t i;
    void *p;
  } value;
} tgrt_value;

enum { TGRT_POINTER = 4 };

typedef int32_t (*tgrt_kernel)(void *self, void *args, int32_t num_args, void *result);

typedef struct {
  void *sync;
  int32_t num_task;
} tgrt_parallel_env;

typedef int (*tgrt_task)(int task, tgrt_parallel_env *env, void *data);

/* ---- tables ---- */

enum tgrt_role { TG_INPUT, TG_STATE, TG_HYPER, TG_OUTPUT, TG_CONST, TG_TEMP, TG_BATCH };

typedef struct {
  const void *data; /* TG_CONST: the values */
  uint64_t bytes;
  uint64_t offset; /* TG_STATE, TG_HYPER: in the state block; TG_TEMP: in the arena */
  uint8_t role;
  uint8_t align; /* bytes of one element */
} tgrt_buffer;

/* Which whole numbers an input takes. */
typedef struct {
  int64_t low, high, also; /* `also`: one more number, where it is outside the range */
  uint64_t count;          /* elements; where the entry takes any batch, of the largest */
  uint8_t by_batch;        /* there are fewer of them in a smaller batch */
  uint8_t is_signed;
} tgrt_limits;

typedef struct {
  const char *name;
  uint32_t buffer;
  uint32_t first_use, num_uses; /* in the entry's table of uses */
  const tgrt_limits *limits;    /* NULL: any */
} tgrt_port;

/* How a call goes through the rows of a batch: the call's kernel takes `rows` of them, `single` one. */
typedef struct {
  tgrt_kernel single;
  const uint64_t *row_bytes; /* of every argument; 0: the same for every row */
  int64_t rows;
  uint64_t scratch_bytes; /* of one part; scratch is the last argument, 0: there is none */
  uint32_t rows_args, single_args; /* how many of the arguments the kernels take: not both need scratch */
  int32_t parts; /* the batch is divided into so many, done at once by serial kernels; 1: the kernels use the threads */
} tgrt_by_rows;

enum { TGRT_MAX_ARGS = 128 }; /* of a call by rows */

typedef struct {
  tgrt_kernel kernel;
  const char *name;
  uint32_t first_arg; /* in the entry's arg table */
  uint32_t num_args;
  const tgrt_by_rows *by_rows; /* NULL: one call */
} tgrt_call;

typedef struct {
  const char *name;
  const tgrt_buffer *buffers;
  const tgrt_port *ports;
  const tgrt_call *calls;
  const uint32_t *args; /* buffer indices, call after call */
  const uint32_t *uses; /* positions in args where a port's buffer stands, port after port */
  uint32_t num_ports, num_calls, num_args;
  uint32_t first_arg; /* of this entry among all entries of the library */
  int64_t batch;      /* the most rows that an entry for any batch takes; 0 for all others */
} tgrt_entry;

typedef struct {
  const char *name;
  const uint32_t *entries;   /* largest batch first */
  const int64_t *batches;    /* of each of them */
  const char *text;          /* which batches there are */
  uint32_t num_entries;
  uint8_t any_batch; /* every batch up to the largest, by the smallest entry that takes it; otherwise those of the entries only */
} tgrt_family;

typedef struct {
  const char *name;
  const char *dtype; /* as in the manifest: "float32" */
  const int64_t *shape;
  int32_t ndim;
  uint8_t role; /* TG_STATE or TG_HYPER */
  uint64_t bytes;
  uint64_t offset;
} tgrt_state;

typedef struct {
  const char *prefix;
  const char *manifest; /* JSON */
  const char *features; /* CPU features that the kernels use, LLVM's names, comma-separated */
  const tgrt_entry *entries;
  const tgrt_state *states;
  const tgrt_family *families;
  uint32_t num_entries, num_states, num_args;
  uint64_t state_bytes, arena_bytes;
} tgrt_library;

/* ---- what the public functions of a library call ---- */

enum tgrt_status {
  TG_OK = 0,
  TG_ERR_CONTEXT = 1,   /* NULL, destroyed, or another library's context */
  TG_ERR_BUSY = 2,      /* the context is inside a call on another thread */
  TG_ERR_ARGUMENT = 3,  /* NULL or misaligned array, a number out of its range, unknown name, wrong size */
  TG_ERR_KERNEL = 4,    /* a kernel refused its arguments */
  TG_ERR_MEMORY = 5,    /* no memory or no threads */
  TG_ERR_MACHINE = 6,   /* this CPU lacks a feature */
  TG_ERR_FILE = 7       /* a checkpoint cannot be read, written or does not fit */
};

typedef struct tgrt_context tgrt_context;

/* The program's own way to run body(data) count times at once; `flags` is 0. libgomp's GOMP_parallel is one. */
typedef void (*tgrt_parallel)(void (*body)(void *), void *data, unsigned count, unsigned flags);

TG_HIDDEN size_t tgrt_workspace_size(const tgrt_library *lib, int num_threads);
TG_HIDDEN tgrt_context *tgrt_context_create(const tgrt_library *lib, int num_threads, void *workspace, size_t bytes);
TG_HIDDEN int tgrt_context_destroy(const tgrt_library *lib, tgrt_context *ctx);
TG_HIDDEN const char *tgrt_last_error(const tgrt_library *lib, const tgrt_context *ctx);
TG_HIDDEN int tgrt_num_threads(const tgrt_library *lib, const tgrt_context *ctx);
TG_HIDDEN int tgrt_use_threads(const tgrt_library *lib, tgrt_context *ctx, tgrt_parallel run);
TG_HIDDEN int tgrt_run(const tgrt_library *lib, tgrt_context *ctx, uint32_t entry, void *const *ports);
TG_HIDDEN int tgrt_run_batch(const tgrt_library *lib, tgrt_context *ctx, uint32_t family, int64_t batch, void *const *ports);
TG_HIDDEN int tgrt_benchmark(const tgrt_library *lib, tgrt_context *ctx, uint32_t entry, void *const *ports, int number, int repeat,
                           double *seconds);
TG_HIDDEN int tgrt_profile(const tgrt_library *lib, tgrt_context *ctx, uint32_t entry, void *const *ports, int repeat, double *seconds);
TG_HIDDEN void *tgrt_state_data(const tgrt_library *lib, tgrt_context *ctx, const char *name, size_t *bytes);
TG_HIDDEN int tgrt_state_get(const tgrt_library *lib, tgrt_context *ctx, const char *name, void *to, size_t bytes);
TG_HIDDEN int tgrt_state_set(const tgrt_library *lib, tgrt_context *ctx, const char *name, const void *from, size_t bytes);
TG_HIDDEN int tgrt_hyper_set(const tgrt_library *lib, tgrt_context *ctx, const char *name, double value);
TG_HIDDEN int tgrt_checkpoint_save(const tgrt_library *lib, tgrt_context *ctx, const char *path);
TG_HIDDEN int tgrt_checkpoint_load(const tgrt_library *lib, tgrt_context *ctx, const char *path);

#endif
