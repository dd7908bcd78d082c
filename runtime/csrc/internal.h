/* Shared by the runtime's own files. */
#ifndef TG_INTERNAL_H
#define TG_INTERNAL_H

#include "runtime.h"

/* -DTG_NO_THREADS: no pthreads, no C11 atomics; every context has one thread, and the program too.
 * -DTG_SERIAL: every context has one thread (kernels in C have no parallel loops). */
#if defined(TG_NO_THREADS) && !defined(TG_SERIAL)
#define TG_SERIAL
#endif
#ifdef TG_NO_THREADS
#define TG_THREAD_LOCAL
#define TG_ATOMIC(type) type
#define tgrt_load(p) (*(p))
#define tgrt_store(p, v) ((void)(*(p) = (v)))
#define tgrt_claim(p) (*(p) ? 0 : (*(p) = 1))
#else
#include <stdatomic.h>
#define TG_THREAD_LOCAL _Thread_local
#define TG_ATOMIC(type) _Atomic type
#define tgrt_load(p) atomic_load_explicit(p, memory_order_acquire)
#define tgrt_store(p, v) atomic_store_explicit(p, v, memory_order_release)
#define tgrt_claim(p) (!atomic_exchange_explicit(p, 1, memory_order_acq_rel))
#endif

#define TG_ALIGN 64u
#define TG_ROUND_UP(n) (((n) + (uint64_t)(TG_ALIGN - 1)) & ~(uint64_t)(TG_ALIGN - 1))

typedef struct tgrt_pool tgrt_pool;

struct tgrt_context {
  const tgrt_library *lib; /* NULL once destroyed */
  TG_ATOMIC(int) busy;
  TG_ATOMIC(int) failed; /* an error text was set during this call */
  int num_threads;
  long process; /* the process whose threads are in the pool */
  tgrt_pool *pool;
  tgrt_parallel run; /* the program's threads; NULL: the pool's */
  tgrt_value *args;
  unsigned char *states;
  unsigned char *arena;
  int64_t batch; /* rows of the call that is running, for entries that take any number */
  void *block; /* what to free; NULL when the caller owns the workspace */
  tgrt_context *next_free;
  char error[512];
};

/* The context whose kernels run on this thread: TVM's hooks carry no context argument. */
#ifndef TG_AMALGAMATION
extern
#endif
TG_HIDDEN TG_THREAD_LOCAL tgrt_context *tgrt_current;

TG_HIDDEN void tgrt_set_error(tgrt_context *ctx, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
TG_HIDDEN int tgrt_enter(const tgrt_library *lib, tgrt_context *ctx);
TG_HIDDEN int tgrt_leave(tgrt_context *ctx, int status);
TG_HIDDEN const tgrt_state *tgrt_find_state(const tgrt_library *lib, const char *name);

/* ---- pool ---- */

TG_HIDDEN size_t tgrt_pool_bytes(int num_threads);
TG_HIDDEN int tgrt_pool_start(tgrt_pool *pool, tgrt_context *ctx, int num_threads); /* 0, or -1 when no thread can be made */
TG_HIDDEN void tgrt_pool_stop(tgrt_pool *pool);
TG_HIDDEN int tgrt_launch(tgrt_task task, void *data, int num_task); /* as kernels do; 0, or what a task returned */
#ifndef TG_SERIAL
TG_HIDDEN int tgrt_usable_cores(void);
#endif
TG_HIDDEN long tgrt_process(void);
TG_HIDDEN double tgrt_now(void);

/* ---- machine ---- */

TG_HIDDEN const char *tgrt_missing_feature(const char *features, char *name, size_t size); /* NULL: all there */

#endif
