/* A pool of threads that belongs to one context.
 *
 * Workers wait for a new job generation: a few pauses, then yields, and after 50 microseconds they sleep on a
 * condition variable. The caller takes part as worker 0 and waits for the others in the same way. Task t of a job
 * always runs with the same (task, number of tasks), so results do not depend on timing.
 *
 * Workers keep off the caller's core and off each other's, within the cores of the thread that made the pool: a thread
 * that yields is always runnable and looks cache-hot, and the scheduler may leave two on one core while another idles.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <time.h>

TG_HIDDEN double tgrt_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#ifndef TG_AMALGAMATION
typedef int (*tgrt_launcher)(tgrt_task task, void *data, int num_task);
#endif

static int run_serially(tgrt_task task, void *data, int num_task) {
  tgrt_parallel_env env = {NULL, num_task > 0 ? num_task : 1};
  for (int t = 0; t < env.num_task; ++t) {
    int status = task(t, &env, data);
    if (status) return status;
  }
  return 0;
}

#ifdef TG_SERIAL

struct tgrt_pool {
  int unused;
};

TG_HIDDEN size_t tgrt_pool_bytes(int num_threads) {
  (void)num_threads;
  return 0;
}
TG_HIDDEN int tgrt_pool_start(tgrt_pool *pool, tgrt_context *ctx, int num_threads) {
  (void)pool, (void)ctx, (void)num_threads;
  return 0;
}
TG_HIDDEN void tgrt_pool_stop(tgrt_pool *pool) { (void)pool; }
TG_HIDDEN long tgrt_process(void) { return 0; }

TG_HIDDEN int tgrt_launch(tgrt_task task, void *data, int num_task) { return run_serially(task, data, num_task); }

#else

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

enum { PAUSES = 400, SPIN_NANOSECONDS = 50000 };

typedef struct {
  pthread_t thread;
  struct tgrt_pool *pool;
  int index;
  atomic_int cpu; /* where it began its last job */
} tgrt_worker;

struct tgrt_pool {
  tgrt_context *ctx;
  int num_threads;
  int stop;
  tgrt_task task;
  void *data;
  tgrt_parallel_env env;
  pthread_mutex_t lock;
  pthread_cond_t work, done;
#ifdef __linux__
  cpu_set_t allowed; /* the cores of the thread that made the pool */
#endif
  /* what threads spin on, each on a cache line of its own */
  _Alignas(TG_ALIGN) atomic_uint generation;
  _Alignas(TG_ALIGN) atomic_int pending;
  atomic_int failed;
  atomic_int caller_cpu;
  _Alignas(TG_ALIGN) atomic_int sleepers;
  atomic_int caller_sleeps;
  tgrt_worker workers[];
};

static TG_THREAD_LOCAL int inside_parallel;

TG_HIDDEN long tgrt_process(void) { return (long)getpid(); }

TG_HIDDEN int tgrt_usable_cores(void) {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (int)n : 1;
}

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ volatile("yield");
#else
  atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Steps of a wait that ends in sleep. Returns 0 when it is time to sleep. Yielding after the first few microseconds
 * leaves the core to anybody who has work, another context's pool for instance. */
static int keep_spinning(int *step, struct timespec *start) {
  if (*step < PAUSES) {
    ++*step;
    pause_briefly();
    return 1;
  }
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (*step == PAUSES) {
    ++*step;
    *start = now;
  }
  if ((now.tv_sec - start->tv_sec) * 1000000000L + (now.tv_nsec - start->tv_nsec) > SPIN_NANOSECONDS) return 0;
  sched_yield();
  return 1;
}

static unsigned wait_for_job(tgrt_pool *pool, unsigned seen) {
  int step = 0;
  struct timespec start = {0, 0};
  unsigned now;
  while ((now = atomic_load_explicit(&pool->generation, memory_order_acquire)) == seen) {
    if (keep_spinning(&step, &start)) continue;
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1); /* sequentially consistent with the caller's "new generation, any sleepers?" */
    while (atomic_load(&pool->generation) == seen) pthread_cond_wait(&pool->work, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
  }
  return now;
}

static void announce_job(tgrt_pool *pool) {
  atomic_fetch_add(&pool->generation, 1);
  if (atomic_load(&pool->sleepers) > 0) {
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
  }
}

static void wait_for_workers(tgrt_pool *pool) {
  int step = 0;
  struct timespec start = {0, 0};
  while (atomic_load_explicit(&pool->pending, memory_order_acquire) != 0) {
    if (keep_spinning(&step, &start)) continue;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_sleeps, 1);
    while (atomic_load(&pool->pending) != 0) pthread_cond_wait(&pool->done, &pool->lock);
    atomic_store(&pool->caller_sleeps, 0);
    pthread_mutex_unlock(&pool->lock);
  }
}

static int run_share(tgrt_pool *pool, int index) {
  for (int t = index; t < pool->env.num_task; t += pool->num_threads) {
    int status = pool->task(t, &pool->env, pool->data);
    if (status) return status;
  }
  return 0;
}

#ifdef __linux__
static int this_cpu(void) { return sched_getcpu(); }

static void without(cpu_set_t *set, int cpu) {
  if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_CLR(cpu, set);
}

/* Keeps all workers off the caller's core, where others are allowed. The caller does it whenever its core is another one
 * than last time: a worker queued behind the caller could not leave before the caller's share is done, and a kernel in a
 * virtual machine takes a halted core for a busy one, so that whoever is woken lands on the core of who wakes. */
static void keep_off_caller(tgrt_pool *pool, int cpu) {
  atomic_store_explicit(&pool->caller_cpu, cpu, memory_order_relaxed);
  cpu_set_t others = pool->allowed;
  without(&others, cpu);
  if (CPU_COUNT(&others) == 0) return;
  for (int i = 0; i < pool->num_threads - 1; ++i) pthread_setaffinity_np(pool->workers[i].thread, sizeof others, &others);
}

/* Keeps a worker off the cores on which those before it have begun the job, where others are allowed. */
static void spread(tgrt_worker *self) {
  tgrt_pool *pool = self->pool;
  int cpu = sched_getcpu(), shared = 0;
  for (int i = 0; i < self->index - 1 && !shared; ++i)
    shared = cpu == atomic_load_explicit(&pool->workers[i].cpu, memory_order_relaxed);
  if (shared) {
    cpu_set_t others = pool->allowed;
    without(&others, atomic_load_explicit(&pool->caller_cpu, memory_order_relaxed));
    for (int i = 0; i < self->index - 1; ++i) without(&others, atomic_load_explicit(&pool->workers[i].cpu, memory_order_relaxed));
    if (CPU_COUNT(&others) > 0) pthread_setaffinity_np(pthread_self(), sizeof others, &others);
    cpu = sched_getcpu();
  }
  atomic_store_explicit(&self->cpu, cpu, memory_order_relaxed);
}
#else
static int this_cpu(void) { return -1; }
static void keep_off_caller(tgrt_pool *pool, int cpu) { (void)pool, (void)cpu; }
static void spread(tgrt_worker *self) { (void)self; }
#endif

static void *work(void *argument) {
  tgrt_worker *self = argument;
  tgrt_pool *pool = self->pool;
  unsigned seen = 0;
  tgrt_current = pool->ctx;
  inside_parallel = 1;
  for (;;) {
    seen = wait_for_job(pool, seen);
    if (pool->stop) return NULL;
    spread(self);
    if (run_share(pool, self->index)) atomic_store_explicit(&pool->failed, 1, memory_order_relaxed);
    if (atomic_fetch_sub(&pool->pending, 1) == 1 && atomic_load(&pool->caller_sleeps)) {
      pthread_mutex_lock(&pool->lock);
      pthread_cond_signal(&pool->done);
      pthread_mutex_unlock(&pool->lock);
    }
  }
}

/* ---- the program's threads ---- */

typedef struct {
  tgrt_context *ctx;
  tgrt_task task;
  void *data;
  tgrt_parallel_env env;
  atomic_int next, failed;
} tgrt_shared_job;

/* Takes tasks until there are none: right for any number of threads, one after the other, too. */
static void take_tasks(void *argument) {
  tgrt_shared_job *job = argument;
  tgrt_context *before = tgrt_current;
  int was_inside = inside_parallel;
  tgrt_current = job->ctx;
  inside_parallel = 1;
  for (int t; (t = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->env.num_task;)
    if (job->task(t, &job->env, job->data)) atomic_store_explicit(&job->failed, 1, memory_order_relaxed);
  inside_parallel = was_inside;
  tgrt_current = before;
}

static int launch_on_programs_threads(tgrt_context *ctx, tgrt_task task, void *data, int num_task) {
  tgrt_shared_job job = {.ctx = ctx, .task = task, .data = data, .env = {NULL, num_task > 0 ? num_task : ctx->num_threads}};
  atomic_init(&job.next, 0);
  atomic_init(&job.failed, 0);
  ctx->run(take_tasks, &job, (unsigned)ctx->num_threads, 0);
  return atomic_load(&job.failed) ? -1 : 0;
}

TG_HIDDEN int tgrt_launch(tgrt_task task, void *data, int num_task) {
  tgrt_pool *pool = tgrt_current->pool;
  if (inside_parallel || tgrt_current->num_threads == 1) return run_serially(task, data, num_task);
  if (tgrt_current->run) return launch_on_programs_threads(tgrt_current, task, data, num_task);
  pool->task = task;
  pool->data = data;
  pool->env.num_task = num_task > 0 ? num_task : pool->num_threads;
  atomic_store_explicit(&pool->failed, 0, memory_order_relaxed);
  atomic_store_explicit(&pool->pending, pool->num_threads - 1, memory_order_relaxed);
  int cpu = this_cpu();
  if (cpu != atomic_load_explicit(&pool->caller_cpu, memory_order_relaxed)) keep_off_caller(pool, cpu);
  announce_job(pool);
  inside_parallel = 1;
  int status = run_share(pool, 0);
  inside_parallel = 0;
  wait_for_workers(pool);
  return status || atomic_load_explicit(&pool->failed, memory_order_relaxed) ? -1 : 0;
}

TG_HIDDEN size_t tgrt_pool_bytes(int num_threads) {
  return num_threads > 1 ? sizeof(tgrt_pool) + (size_t)(num_threads - 1) * sizeof(tgrt_worker) : 0;
}

TG_HIDDEN int tgrt_pool_start(tgrt_pool *pool, tgrt_context *ctx, int num_threads) {
  if (num_threads == 1) return 0;
#ifdef __linux__
  if (sched_getaffinity(0, sizeof pool->allowed, &pool->allowed)) CPU_ZERO(&pool->allowed);
#endif
  pool->ctx = ctx;
  pool->num_threads = 1;
  pool->stop = 0;
  pool->env.sync = NULL;
  atomic_init(&pool->generation, 0);
  atomic_init(&pool->pending, 0);
  atomic_init(&pool->failed, 0);
  atomic_init(&pool->sleepers, 0);
  atomic_init(&pool->caller_sleeps, 0);
  atomic_init(&pool->caller_cpu, -1);
  if (pthread_mutex_init(&pool->lock, NULL) || pthread_cond_init(&pool->work, NULL) || pthread_cond_init(&pool->done, NULL)) return -1;

  sigset_t all, before; /* signals of the program are for the program's own threads */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int status = 0;
  for (int i = 1; i < num_threads && !status; ++i) {
    tgrt_worker *w = &pool->workers[i - 1];
    w->pool = pool;
    w->index = i;
    atomic_init(&w->cpu, -1);
    status = pthread_create(&w->thread, NULL, work, w);
    if (!status) pool->num_threads = i + 1;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (status) tgrt_pool_stop(pool);
  return status ? -1 : 0;
}

TG_HIDDEN void tgrt_pool_stop(tgrt_pool *pool) {
  pool->stop = 1;
  announce_job(pool);
  for (int i = 0; i < pool->num_threads - 1; ++i) pthread_join(pool->workers[i].thread, NULL);
  pthread_cond_destroy(&pool->done);
  pthread_cond_destroy(&pool->work);
  pthread_mutex_destroy(&pool->lock);
}

#endif

#ifndef TG_AMALGAMATION
/* The kernels' objects hold this variable as a weak NULL; the strong definition wins at link time. */
extern TG_HIDDEN tgrt_launcher __TVMBackendParallelLaunch;
TG_HIDDEN tgrt_launcher __TVMBackendParallelLaunch = tgrt_launch;
#endif
