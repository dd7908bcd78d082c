/* Two models in one program, their steps in turn: ./two mlp_x mlp_y cnn_x cnn_y, in the folder of both packages. */
#include "cnn.h"
#include "mlp.h"

#include <stdio.h>

static float a[16 * 49], b[8 * 144];
static int64_t c[16], d[8];

static int take(const char *name, void *to, size_t bytes) {
  FILE *file = fopen(name, "rb");
  int ok = file && fread(to, 1, bytes, file) == bytes;
  if (file) fclose(file);
  return !ok;
}

int main(int argc, char **argv) {
  if (argc != 5 || take(argv[1], a, sizeof a) || take(argv[2], c, sizeof c) || take(argv[3], b, sizeof b) || take(argv[4], d, sizeof d)) return 1;
  mlp_context *mlp = mlp_context_create(2);
  cnn_context *cnn = cnn_context_create(2);
  if (!mlp || !cnn || mlp_load(mlp, "mlp.safetensors") || cnn_load(cnn, "cnn.safetensors")) return 2;
  for (int i = 0; i < 20; ++i) {
    float one, other;
    if (mlp_call_step(mlp, a, c, &one) || cnn_call_step(cnn, b, d, &other)) return 3;
    printf("%.9g %.9g\n", (double)one, (double)other);
  }
  return mlp_context_destroy(mlp) | cnn_context_destroy(cnn);
}
