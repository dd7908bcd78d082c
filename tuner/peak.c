/* What one core can do at most: multiply-adds of full vectors in registers, and streaming reads from memory. */
#define _POSIX_C_SOURCE 200809L
#include <stddef.h>
#include <time.h>

#ifndef BYTES
#define BYTES 16
#endif
typedef float vec __attribute__((vector_size(BYTES)));
enum { LANES = BYTES / 4, CHAINS = 10 }; /* latency times throughput, and still within 16 registers */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Floating-point operations a second: the best of some bursts. */
__attribute__((visibility("default"))) double tilegrad_peak_flops(float one, float small) {
    vec a[CHAINS], m, b;
    double best = 0;
    for (int l = 0; l < LANES; ++l) m[l] = one, b[l] = small;
    for (int c = 0; c < CHAINS; ++c) a[c] = m;
    for (int burst = 0; burst < 40; ++burst) {
        double start = now();
        for (int i = 0; i < 200000; ++i)
            for (int c = 0; c < CHAINS; ++c) a[c] = a[c] * m + b;
        double rate = 2.0 * LANES * CHAINS * 200000 / (now() - start);
        if (rate > best) best = rate;
    }
    for (int c = 1; c < CHAINS; ++c) a[0] += a[c];
    return a[0][0] == 12345.0f ? 0 : best; /* the sum is used: nothing can be optimised away */
}
