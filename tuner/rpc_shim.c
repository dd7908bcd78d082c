/* Uploaded once to an RPC server: opens candidate libraries there and runs and times them through their own C interface.
 *
 * One function, callable over TVM's RPC:
 *   tilegrad_time(path u8[], numbers i64[5], seconds f64[repeat], port tensors...)
 * numbers: threads, runs in a repeat, repeats, bytes to write before each run (0: hot caches), number of ports.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { /* DLTensor of DLPack 1 */
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} tensor;
typedef struct { /* TVMFFIAny */
    int32_t type_index;
    uint32_t padding;
    union {
        int64_t i;
        void *p;
    } v;
} any;
enum { DLTENSOR = 7, OBJECT_TENSOR = 70, OBJECT_HEADER = 24, MOST = 64 };

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);
static int fail(const char *what, const char *why) {
    char text[512];
    snprintf(text, sizeof text, "%s: %s", what, why ? why : "unknown");
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", text);
    return -1;
}

static void *data(const any *a) {
    const tensor *t = a->type_index == DLTENSOR ? a->v.p : (const tensor *)((const char *)a->v.p + OBJECT_HEADER);
    return (char *)t->data + t->byte_offset;
}

typedef struct {
    void *handle;
    size_t (*workspace_size)(int);
    void *(*context_create_in)(int, void *, size_t);
    int (*context_destroy)(void *);
    const char *(*last_error)(void *);
    int (*benchmark)(void *, unsigned, void *const *, int, int, double *);
    int (*run)(void *, void *const *);
} library;

static int open_library(library *l, const char *path) {
    l->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!l->handle) return fail("candidate", dlerror());
    struct {
        const char *name;
        void *slot;
    } wanted[] = {{"tg_workspace_size", &l->workspace_size}, {"tg_context_create_in", &l->context_create_in},
                  {"tg_context_destroy", &l->context_destroy}, {"tg_last_error", &l->last_error},
                  {"tg_benchmark", &l->benchmark}, {"tg_run", &l->run}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; ++i) {
        void *symbol = dlsym(l->handle, wanted[i].name);
        if (!symbol) return fail(wanted[i].name, "not in the candidate");
        memcpy(wanted[i].slot, &symbol, sizeof symbol);
    }
    return 0;
}

static int timed(library *l, const int64_t *numbers, double *seconds, void *const *ports) {
    int threads = (int)numbers[0], status = 0;
    size_t size = l->workspace_size(threads);
    void *memory = NULL, *context;
    if (posix_memalign(&memory, 64, size + 64)) return fail("workspace", "out of memory");
    memset(memory, 0, size + 64);
    if (!(context = l->context_create_in(threads, memory, size))) {
        free(memory);
        return fail("context", l->last_error(NULL));
    }
    status = l->run(context, ports);
    if (!status && numbers[3] == 0) status = l->benchmark(context, 0, ports, (int)numbers[1], (int)numbers[2], seconds);
    for (int r = 0; !status && numbers[3] > 0 && r < numbers[2]; ++r) {
        char *sweep = malloc((size_t)numbers[3]);
        if (!sweep) break;
        memset(sweep, r, (size_t)numbers[3]);
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        status = l->run(context, ports);
        clock_gettime(CLOCK_MONOTONIC, &b);
        seconds[r] = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
        if (sweep[numbers[3] / 2] == 1) seconds[r] += 0; /* the writes are used */
        free(sweep);
    }
    if (status) fail("run", l->last_error(context));
    l->context_destroy(context);
    free(memory);
    return status ? -1 : 0;
}

__attribute__((visibility("default"))) int __tvm_ffi_tilegrad_time(void *self, const any *args, int32_t count, any *result) {
    (void)self;
    result->type_index = 1;
    result->padding = 0;
    result->v.i = 0;
    if (count < 4 || count > MOST) return fail("tilegrad_time", "wrong number of arguments");
    void *ports[MOST];
    for (int i = 3; i < count; ++i) ports[i - 3] = data(&args[i]);
    library l;
    if (open_library(&l, data(&args[0]))) return -1;
    int status = timed(&l, data(&args[1]), data(&args[2]), ports);
    dlclose(l.handle);
    return status;
}
