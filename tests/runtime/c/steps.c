/* Ten thousand steps: no allocation inside them, no growth of memory. Prints the number of allocations. */
#define _GNU_SOURCE
#include "regress.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static volatile long allocations;

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n) {
  ++allocations;
  return __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
  ++allocations;
  return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
  ++allocations;
  return __libc_realloc(p, n);
}

static long peak_kilobytes(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

int main(void) {
  static float x[32 * 5] = {1, 2, 3}, y[32] = {1};
  float loss;
  regress_context *ctx = regress_context_create(2);
  if (!ctx || regress_set_hyper(ctx, "lr", 0.01) || allocations == 0) return 1;
  for (int i = 0; i < 100; ++i)
    if (regress_call_step(ctx, x, y, &loss)) return 2;
  long before = allocations, peak = peak_kilobytes();
  for (int i = 0; i < 10000; ++i)
    if (regress_call_step(ctx, x, y, &loss)) return 2;
  long during = allocations - before, grown = peak_kilobytes() - peak;
  printf("%ld %ld\n", during, grown);
  return regress_context_destroy(ctx);
}
