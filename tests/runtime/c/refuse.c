#include "regress.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define SHOW(call) printf("%d %s\n", call, regress_last_error(ctx))
int main(void) {
  static float x[32 * 5 + 1], y[32];
  float loss, w[5] = {1, 2, 3, 4, 5};
  size_t bytes = 0, need = regress_workspace_size(2);
  regress_context *ctx = NULL;
  SHOW(regress_step(ctx, NULL));
  void *memory = calloc(1, need);
  if (regress_context_create_in(2, memory, need - 1)) return 1;
  printf("%s\n", strstr(regress_last_error(NULL), "needed") ? "too small" : "?");
  ctx = regress_context_create_in(2, memory, need);
  if (!ctx || regress_num_threads(ctx) != 2) return 1;
  SHOW(regress_step(ctx, NULL));
  SHOW(regress_call_step(ctx, x, NULL, &loss));
  SHOW(regress_call_step(ctx, (const float *)(const void *)((const char *)x + 1), y, &loss));
  SHOW(regress_set_state(ctx, "v", w, sizeof w));
  SHOW(regress_set_state(ctx, "w", w, 4));
  SHOW(regress_set_hyper(ctx, "w", 1.0));
  SHOW(regress_load(ctx, "no such file"));
  SHOW(regress_load(ctx, "main.c"));
  SHOW(regress_save(ctx, "no such folder/file"));
  SHOW(regress_set_state(ctx, "w", w, sizeof w) || regress_set_hyper(ctx, "lr", 0.5));
  float *own = regress_state(ctx, "w", &bytes);
  printf("%d %g %g\n", (int)bytes, (double)own[4], (double)*(float *)regress_state(ctx, "lr", NULL));
  printf("%d\n", regress_state(ctx, "v", NULL) == NULL);
  regress_context_destroy(ctx);
  free(memory);
  return regress_context_destroy(NULL);
}
