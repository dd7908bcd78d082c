/* Trains the exported step from C and saves what it learned. In the package's folder:
 *
 *     cc -O2 -I. /path/to/train.c -L. -lspirals -Wl,-rpath,. -lm -o train && ./train
 */
#include "spirals.h"

#include <math.h>
#include <stdio.h>

enum { BATCH = 240, STEPS = 400 };

static float x[BATCH][2], scores[BATCH][2];
static int64_t target[BATCH];

static void two_spirals(void) {
  for (int i = 0; i < BATCH; ++i) {
    double turn = 1.5 * 3.14159265358979323846 * (i / 2 + 1) / (BATCH / 2), side = i % 2 ? -1 : 1;
    x[i][0] = (float)(side * cos(turn) * turn / 5);
    x[i][1] = (float)(side * sin(turn) * turn / 5);
    target[i] = i % 2;
  }
}

int main(void) {
  float loss = 0;
  int right = 0;
  two_spirals();

  spirals_context *ctx = spirals_context_create(0);
  if (!ctx) return fprintf(stderr, "%s\n", spirals_last_error(NULL)), 1;
  int status = spirals_load(ctx, "parameters.safetensors");
  for (int i = 0; i < STEPS && !status; ++i) {
    if (i == STEPS / 2) status = spirals_set_hyper(ctx, "lr", 0.003);
    if (!status) status = spirals_call_step(ctx, &x[0][0], target, &loss);
    if (i % 100 == 0) printf("step %3d  loss %.4f\n", i, (double)loss);
  }
  if (!status) status = spirals_call_predict(ctx, &x[0][0], &scores[0][0]);
  if (!status) status = spirals_save(ctx, "trained.safetensors");
  if (status) return fprintf(stderr, "error %d: %s\n", status, spirals_last_error(ctx)), 1;

  for (int i = 0; i < BATCH; ++i) right += (scores[i][1] > scores[i][0]) == (int)target[i];
  printf("loss %.4f, %d of %d right\n", (double)loss, right, BATCH);
  return spirals_context_destroy(ctx);
}
