/* Contexts: one block of memory that holds everything a call needs, and the calls themselves. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef TG_NO_THREADS
#include <pthread.h>
static pthread_mutex_t freed_lock = PTHREAD_MUTEX_INITIALIZER;
#define LOCK() pthread_mutex_lock(&freed_lock)
#define UNLOCK() pthread_mutex_unlock(&freed_lock)
#else
#define LOCK() ((void)0)
#define UNLOCK() ((void)0)
#endif

#ifndef TG_AMALGAMATION
TG_THREAD_LOCAL tgrt_context *tgrt_current;
#endif

/* Why the last tgrt_context_create of this thread returned NULL. */
static TG_THREAD_LOCAL char creation_error[512];

/* Destroyed contexts' headers are kept and reused last, so that a call on one is refused instead of reading freed memory. */
static tgrt_context *freed_first, *freed_last;

/* ---- errors ---- */

void tgrt_set_error(tgrt_context *ctx, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(ctx ? ctx->error : creation_error, ctx ? sizeof ctx->error : sizeof creation_error, format, list);
  va_end(list);
}

/* Kernels call this when their arguments are not what they were compiled for. The first of several threads wins. */
TG_HIDDEN void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t num_parts);
void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t num_parts) {
  tgrt_context *ctx = tgrt_current;
  if (!ctx || !tgrt_claim(&ctx->failed)) return;
  size_t used = (size_t)snprintf(ctx->error, sizeof ctx->error, "%s: ", kind);
  for (int32_t i = 0; i < num_parts && used < sizeof ctx->error; ++i) {
    int n = snprintf(ctx->error + used, sizeof ctx->error - used, "%s", parts[i] ? parts[i] : "");
    if (n > 0) used += (size_t)n;
  }
}

const char *tgrt_last_error(const tgrt_library *lib, const tgrt_context *ctx) {
  if (!ctx) return creation_error[0] ? creation_error : "the context is NULL";
  if (ctx->lib == NULL) return "the context was destroyed";
  if (ctx->lib != lib) return "the context belongs to another library";
  return ctx->error;
}

/* ---- memory: pool, arguments, states, arena ---- */

typedef struct {
  uint64_t pool, args, states, arena, total;
} tgrt_layout;

static tgrt_layout layout_of(const tgrt_library *lib, int num_threads) {
  tgrt_layout at;
  at.pool = 0;
  at.args = TG_ROUND_UP(at.pool + tgrt_pool_bytes(num_threads));
  at.states = TG_ROUND_UP(at.args + lib->num_args * sizeof(tgrt_value));
  at.arena = TG_ROUND_UP(at.states + lib->state_bytes);
  at.total = at.arena + TG_ROUND_UP(lib->arena_bytes);
  return at;
}

static int threads_or_default(int num_threads) {
#ifdef TG_SERIAL
  (void)num_threads;
  return 1;
#else
  return num_threads > 0 ? num_threads : tgrt_usable_cores();
#endif
}

size_t tgrt_workspace_size(const tgrt_library *lib, int num_threads) {
  return (size_t)layout_of(lib, threads_or_default(num_threads)).total + TG_ALIGN - 1;
}

/* Where a buffer lies that no caller supplies; NULL for inputs and outputs. */
static void *own_data(const tgrt_context *ctx, const tgrt_buffer *b) {
  switch (b->role) {
    case TG_STATE:
    case TG_HYPER:
      return ctx->states + b->offset;
    case TG_TEMP:
      return ctx->arena + b->offset;
    case TG_CONST:
      return (void *)(uintptr_t)b->data;
    case TG_BATCH:
      return (void *)(uintptr_t)&ctx->batch;
    default:
      return NULL;
  }
}

static void fill_args(const tgrt_library *lib, tgrt_context *ctx) {
  for (uint32_t e = 0; e < lib->num_entries; ++e) {
    const tgrt_entry *entry = &lib->entries[e];
    for (uint32_t i = 0; i < entry->num_args; ++i) {
      tgrt_value *arg = &ctx->args[entry->first_arg + i];
      arg->type_index = TGRT_POINTER;
      arg->zero = 0;
      arg->value.p = own_data(ctx, &entry->buffers[entry->args[i]]);
    }
  }
}

/* A header that nobody was ever given, or the one destroyed longest ago when there are many of those. */
static tgrt_context *take_header(void) {
  enum { KEEP = 64 };
  int freed = 0;
  LOCK();
  for (tgrt_context *c = freed_first; c; c = c->next_free) ++freed;
  tgrt_context *ctx = freed > KEEP ? freed_first : NULL;
  if (ctx) freed_first = ctx->next_free;
  UNLOCK();
  if (!ctx) ctx = malloc(sizeof *ctx);
  if (ctx) memset(ctx, 0, sizeof *ctx);
  return ctx;
}

static void give_header_back(tgrt_context *ctx) {
  LOCK();
  ctx->next_free = NULL;
  if (freed_first)
    freed_last->next_free = ctx;
  else
    freed_first = ctx;
  freed_last = ctx;
  UNLOCK();
}

tgrt_context *tgrt_context_create(const tgrt_library *lib, int num_threads, void *workspace, size_t bytes) {
  char feature[32];
  creation_error[0] = '\0';
  if (tgrt_missing_feature(lib->features, feature, sizeof feature)) {
    tgrt_set_error(NULL, "this CPU lacks %s; the library needs %s", feature, lib->features);
    return NULL;
  }
  num_threads = threads_or_default(num_threads);
  tgrt_layout at = layout_of(lib, num_threads);
  size_t need = (size_t)at.total + TG_ALIGN - 1;
  if (workspace && bytes < need) {
    tgrt_set_error(NULL, "the workspace has %zu bytes, needed %zu", bytes, need);
    return NULL;
  }
  tgrt_context *ctx = take_header();
  void *block = workspace;
  if (ctx && !block) block = ctx->block = calloc(1, need); /* untouched pages of a large block cost nothing */
  if (!ctx || !block) {
    tgrt_set_error(NULL, "no memory for %zu bytes", need);
    if (ctx) give_header_back(ctx);
    return NULL;
  }
  unsigned char *base = (unsigned char *)(uintptr_t)TG_ROUND_UP((uintptr_t)block);
  ctx->num_threads = num_threads;
  ctx->run = NULL;
  ctx->process = tgrt_process();
  ctx->pool = (tgrt_pool *)(void *)(base + at.pool);
  ctx->args = (tgrt_value *)(void *)(base + at.args);
  ctx->states = base + at.states;
  ctx->arena = base + at.arena;
  fill_args(lib, ctx);
  if (tgrt_pool_start(ctx->pool, ctx, num_threads)) {
    tgrt_set_error(NULL, "cannot start %d threads", num_threads);
    free(ctx->block);
    give_header_back(ctx);
    return NULL;
  }
  ctx->lib = lib;
  return ctx;
}

int tgrt_context_destroy(const tgrt_library *lib, tgrt_context *ctx) {
  if (!ctx) return TG_OK;
  int status = tgrt_enter(lib, ctx);
  if (status) return status;
  if (ctx->num_threads > 1) tgrt_pool_stop(ctx->pool);
  tgrt_current = NULL;
  free(ctx->block);
  ctx->block = NULL;
  ctx->lib = NULL;
  tgrt_store(&ctx->busy, 0);
  give_header_back(ctx);
  return TG_OK;
}

int tgrt_num_threads(const tgrt_library *lib, const tgrt_context *ctx) { return ctx && ctx->lib == lib ? ctx->num_threads : 0; }

int tgrt_use_threads(const tgrt_library *lib, tgrt_context *ctx, tgrt_parallel run) {
  int status = tgrt_enter(lib, ctx);
  if (status) return status;
  ctx->run = run;
  return tgrt_leave(ctx, TG_OK);
}

/* ---- calls ---- */

int tgrt_enter(const tgrt_library *lib, tgrt_context *ctx) {
  if (!ctx || ctx->lib != lib) return TG_ERR_CONTEXT;
  long process = tgrt_process();
  if (process != ctx->process) { /* a fork's child has none of the threads, and nobody else is in the context */
    ctx->process = process;
    tgrt_store(&ctx->busy, 0);
    if (tgrt_pool_start(ctx->pool, ctx, ctx->num_threads)) {
      ctx->process = 0;
      tgrt_set_error(ctx, "cannot start %d threads", ctx->num_threads);
      return TG_ERR_MEMORY;
    }
  }
  if (!tgrt_claim(&ctx->busy)) return TG_ERR_BUSY; /* the error text belongs to the call that is running */
  ctx->error[0] = '\0';
  tgrt_store(&ctx->failed, 0);
  tgrt_current = ctx;
  return TG_OK;
}

int tgrt_leave(tgrt_context *ctx, int status) {
  tgrt_current = NULL;
  tgrt_store(&ctx->busy, 0);
  return status;
}

static int64_t whole_number(const void *data, uint64_t i, int bytes, int is_signed) {
  switch (bytes) {
    case 1: return is_signed ? ((const int8_t *)data)[i] : ((const uint8_t *)data)[i];
    case 2: return is_signed ? ((const int16_t *)data)[i] : ((const uint16_t *)data)[i];
    case 4: return is_signed ? (int64_t)((const int32_t *)data)[i] : (int64_t)((const uint32_t *)data)[i];
    default: return ((const int64_t *)data)[i]; /* of uint64 those beyond int64's become negative: outside any range from 0 on */
  }
}

static int check_limits(tgrt_context *ctx, const tgrt_entry *entry, uint32_t i, const void *data) {
  const tgrt_port *port = &entry->ports[i];
  const tgrt_limits *l = port->limits;
  const uint64_t count = l->by_batch ? l->count / (uint64_t)entry->batch * (uint64_t)ctx->batch : l->count;
  for (uint64_t n = 0; n < count; ++n) {
    const int64_t x = whole_number(data, n, entry->buffers[port->buffer].align, l->is_signed);
    if ((x >= l->low && x <= l->high) || x == l->also) continue;
    int used = snprintf(ctx->error, sizeof ctx->error, "%s: argument %u ('%s') is %lld at element %llu, expected %lld to %lld", entry->name,
                        (unsigned)i, port->name, (long long)x, (unsigned long long)n, (long long)l->low, (long long)l->high);
    if ((l->also < l->low || l->also > l->high) && used > 0 && (size_t)used < sizeof ctx->error)
      snprintf(ctx->error + used, sizeof ctx->error - (size_t)used, ", or %lld", (long long)l->also);
    return TG_ERR_ARGUMENT;
  }
  return TG_OK;
}

static int bind_ports(tgrt_context *ctx, const tgrt_entry *entry, void *const *ports, int64_t batch) {
  ctx->batch = batch;
  tgrt_value *args = ctx->args + entry->first_arg;
  for (uint32_t i = 0; i < entry->num_ports; ++i) {
    const tgrt_port *port = &entry->ports[i];
    const tgrt_buffer *b = &entry->buffers[port->buffer];
    void *data = ports ? ports[i] : NULL;
    if (!data) data = own_data(ctx, b);
    if (!data && b->bytes) {
      tgrt_set_error(ctx, "%s: argument %u ('%s') is NULL", entry->name, (unsigned)i, port->name);
      return TG_ERR_ARGUMENT;
    }
    if ((uintptr_t)data & (uintptr_t)(b->align - 1)) {
      tgrt_set_error(ctx, "%s: argument %u ('%s') is not aligned to its element of %d bytes", entry->name, (unsigned)i, port->name, b->align);
      return TG_ERR_ARGUMENT;
    }
    if (port->limits && check_limits(ctx, entry, i, data)) return TG_ERR_ARGUMENT;
    for (uint32_t u = port->first_use; u < port->first_use + port->num_uses; ++u) args[entry->uses[u]].value.p = data;
  }
  return TG_OK;
}

typedef struct {
  const tgrt_call *call;
  const tgrt_value *args;
  int64_t batch;
} tgrt_rows_job;

/* The rows of one part: several at once as long as there are so many, then one by one. */
static int run_rows(int part, tgrt_parallel_env *env, void *data) {
  const tgrt_rows_job *job = data;
  const tgrt_by_rows *by = job->call->by_rows;
  const int num_args = (int)job->call->num_args;
  tgrt_value args[TGRT_MAX_ARGS], result = {0, 0, {0}};
  int64_t row = job->batch * part / env->num_task, end = job->batch * (part + 1) / env->num_task;
  memcpy(args, job->args, (size_t)num_args * sizeof *args);
  for (int i = 0; i < num_args; ++i) args[i].value.p = (unsigned char *)args[i].value.p + (uint64_t)row * by->row_bytes[i];
  if (by->scratch_bytes) args[num_args - 1].value.p = (unsigned char *)args[num_args - 1].value.p + (uint64_t)part * by->scratch_bytes;
  while (row < end) {
    const int64_t rows = end - row >= by->rows ? by->rows : 1;
    const int whole = rows == by->rows;
    if ((whole ? job->call->kernel : by->single)(NULL, args, (int)(whole ? by->rows_args : by->single_args), &result)) return -1;
    for (int i = 0; i < num_args; ++i) args[i].value.p = (unsigned char *)args[i].value.p + (uint64_t)rows * by->row_bytes[i];
    row += rows;
  }
  return 0;
}

static int run_call(tgrt_context *ctx, const tgrt_call *call, tgrt_value *args) {
  tgrt_value result = {0, 0, {0}};
  if (!call->by_rows) return call->kernel(NULL, args, (int)call->num_args, &result);
  tgrt_rows_job job = {call, args, ctx->batch};
  tgrt_parallel_env alone = {NULL, 1};
  if (call->by_rows->parts == 1 || ctx->batch <= call->by_rows->rows) return run_rows(0, &alone, &job); /* too little to share */
  return tgrt_launch(run_rows, &job, call->by_rows->parts);
}

static int run_calls(tgrt_context *ctx, const tgrt_entry *entry, double *seconds) {
  tgrt_value *args = ctx->args + entry->first_arg;
  double before = seconds ? tgrt_now() : 0.0;
  for (uint32_t i = 0; i < entry->num_calls; ++i) {
    const tgrt_call *call = &entry->calls[i];
    if (run_call(ctx, call, args + call->first_arg)) {
      size_t used = strlen(ctx->error);
      snprintf(ctx->error + used, sizeof ctx->error - used, "%s[%s, kernel %s]", used ? " " : "", entry->name, call->name);
      return TG_ERR_KERNEL;
    }
    if (seconds) {
      double now = tgrt_now();
      seconds[i] = now - before;
      before = now;
    }
  }
  return TG_OK;
}

/* Inside a call: binds, and runs as many rows as given where the entry takes any number. */
static int run_entry(tgrt_context *ctx, const tgrt_entry *entry, int64_t batch, void *const *ports) {
  int status = bind_ports(ctx, entry, ports, batch);
  return status ? status : run_calls(ctx, entry, NULL);
}

int tgrt_run(const tgrt_library *lib, tgrt_context *ctx, uint32_t e, void *const *ports) {
  int status = tgrt_enter(lib, ctx);
  if (status) return status;
  return tgrt_leave(ctx, run_entry(ctx, &lib->entries[e], lib->entries[e].batch, ports));
}

int tgrt_run_batch(const tgrt_library *lib, tgrt_context *ctx, uint32_t f, int64_t batch, void *const *ports) {
  int status = tgrt_enter(lib, ctx);
  if (status) return status;
  const tgrt_family *family = &lib->families[f];
  for (uint32_t i = family->num_entries; i-- > 0;) /* the smallest first */
    if (batch == family->batches[i] || (family->any_batch && batch >= 1 && batch < family->batches[i]))
      return tgrt_leave(ctx, run_entry(ctx, &lib->entries[family->entries[i]], batch, ports));
  tgrt_set_error(ctx, "%s: a batch of %lld; there are %s", family->name, (long long)batch, family->text);
  return tgrt_leave(ctx, TG_ERR_ARGUMENT);
}

int tgrt_benchmark(const tgrt_library *lib, tgrt_context *ctx, uint32_t e, void *const *ports, int number, int repeat, double *seconds) {
  int status = tgrt_enter(lib, ctx);
  if (status) return status;
  if (e >= lib->num_entries || number < 1 || repeat < 1 || !seconds) {
    tgrt_set_error(ctx, "benchmark: entry, number or repeat out of range");
    return tgrt_leave(ctx, TG_ERR_ARGUMENT);
  }
  status = bind_ports(ctx, &lib->entries[e], ports, lib->entries[e].batch);
  for (int r = 0; r < repeat && !status; ++r) {
    double before = tgrt_now();
    for (int n = 0; n < number && !status; ++n) status = run_calls(ctx, &lib->entries[e], NULL);
    seconds[r] = (tgrt_now() - before) / number;
  }
  return tgrt_leave(ctx, status);
}

int tgrt_profile(const tgrt_library *lib, tgrt_context *ctx, uint32_t e, void *const *ports, int repeat, double *seconds) {
  int status = tgrt_enter(lib, ctx);
  if (status) return status;
  if (e >= lib->num_entries || repeat < 1 || !seconds) {
    tgrt_set_error(ctx, "profile: entry or repeat out of range");
    return tgrt_leave(ctx, TG_ERR_ARGUMENT);
  }
  status = bind_ports(ctx, &lib->entries[e], ports, lib->entries[e].batch);
  for (int r = 0; r < repeat && !status; ++r) status = run_calls(ctx, &lib->entries[e], seconds + (size_t)r * lib->entries[e].num_calls);
  return tgrt_leave(ctx, status);
}
