/* Many contexts in many threads, made and destroyed, called, saved and loaded; every thread must see the same losses. */
#include "regress.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 3, STEPS = 100 };

static float x[32 * 5], y[32];

static void *train(void *result) {
  float loss = -1;
  for (int round = 0; round < ROUNDS; ++round) {
    regress_context *ctx = regress_context_create(1 + round);
    if (!ctx || regress_set_hyper(ctx, "lr", 0.1)) return NULL;
    for (int i = 0; i < STEPS; ++i)
      if (regress_call_step(ctx, x, y, &loss)) return NULL;
    void *args[] = {x, y, NULL, &loss};
    double seconds[6];
    if (regress_benchmark(ctx, 1, args, 3, 2, seconds) || regress_profile(ctx, 1, args, 3, seconds)) return NULL;
    if (regress_context_destroy(ctx) || regress_context_destroy(ctx) != REGRESS_ERR_CONTEXT) return NULL;
  }
  *(float *)result = loss;
  return result;
}

int main(void) {
  pthread_t threads[THREADS];
  float losses[THREADS];
  for (int i = 0; i < 32 * 5; ++i) x[i] = (float)(i * 7 % 11) / 5.0f - 1.0f;
  for (int i = 0; i < 32; ++i) y[i] = x[5 * i] - 2 * x[5 * i + 1];
  for (int i = 0; i < THREADS; ++i)
    if (pthread_create(&threads[i], NULL, train, &losses[i])) return 1;
  for (int i = 0; i < THREADS; ++i) {
    void *done;
    if (pthread_join(threads[i], &done) || !done || losses[i] != losses[0]) return 2;
  }
  regress_context *a = regress_context_create(2), *b = regress_context_create(2);
  float loss, one[5], other[5];
  for (int i = 0; i < STEPS; ++i)
    if (regress_set_hyper(a, "lr", 0.1) || regress_call_step(a, x, y, &loss)) return 3;
  if (regress_save(a, "stress.safetensors") || regress_load(b, "stress.safetensors")) return 4;
  if (regress_get_state(a, "w", one, sizeof one) || regress_get_state(b, "w", other, sizeof other)) return 5;
  if (memcmp(one, other, sizeof one) || regress_load(b, "stress.c") != REGRESS_ERR_FILE) return 6;
  regress_context_destroy(a);
  regress_context_destroy(b);
  printf("%g\n", (double)losses[0]);
  return 0;
}
