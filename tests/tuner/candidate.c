/* The C interface of a library with one entry "run" (y = x + 1 over N floats) that can misbehave in many ways. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifndef N
#define N 16
#endif
static int act(void *const *args) {
    const float *x = args[0];
    float *y = args[1];
    for (int i = 0; i < N; ++i) y[i] = x[i] + 1.0f;
#ifdef SLOW
    struct timespec t = {0, SLOW * 1000000L};
    nanosleep(&t, NULL);
#endif
#ifdef WRONG
    y[N - 1] += 0.5f;
#endif
#ifdef SEGFAULT
    *(volatile int *)8 = 1;
#endif
#ifdef ILLEGAL
    __builtin_trap();
#endif
#ifdef HANG
    for (volatile int i = 0;; ++i) {}
#endif
#ifdef FAILS
    return 7;
#endif
    return 0;
}
size_t tg_workspace_size(int threads) { return 64 + 0 * (size_t)threads; }
void *tg_context_create_in(int threads, void *memory, size_t size) { return threads && size ? memory : NULL; }
int tg_context_destroy(void *c) { return c == NULL; }
const char *tg_last_error(void *c) { return c ? "scripted failure" : "no context"; }
void *tg_state(void *c, const char *name, void *size) { return c && name && !size ? NULL : NULL; }
int tg_use_threads(void *c, void *run) { return run ? 1 : c == NULL; }
int tg_run(void *c, void *const *args) { return c ? act(args) : 1; }
int tg_profile(void *c, unsigned e, void *const *args, int repeat, double *seconds) {
    (void)e;
    (void)repeat;
    seconds[0] = 0;
    return tg_run(c, args);
}
int tg_benchmark(void *c, unsigned e, void *const *args, int number, int repeat, double *seconds) {
    (void)e;
    for (int r = 0; r < repeat; ++r) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        for (int i = 0; i < number; ++i) {
            int status = tg_run(c, args);
            if (status) return status;
        }
        clock_gettime(CLOCK_MONOTONIC, &b);
        seconds[r] = ((b.tv_sec - a.tv_sec) + 1e-9 * (b.tv_nsec - a.tv_nsec)) / number;
    }
    return 0;
}
