/* A training step under stress: ./hard MODE x.bin y.bin; -DMODEL=its prefix, -DHEADER="its header", -DX=, -DY= the inputs' C types.
 * Exit code 0: every context saw the same losses, bit for bit. */
#include HEADER

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define F(name) PASTE(MODEL, name)

enum { THREADS = 8, CONTEXTS = 8, STEPS = 20 };

static X *x;
static Y *y;
static float expected[STEPS];

static void *read_file(const char *name) {
  FILE *file = fopen(name, "rb");
  if (!file || fseek(file, 0, SEEK_END)) exit(11);
  size_t bytes = (size_t)ftell(file);
  void *data = malloc(bytes);
  rewind(file);
  if (!data || fread(data, 1, bytes, file) != bytes) exit(12);
  fclose(file);
  return data;
}

static F(context) *make(void) {
  F(context) *ctx = F(context_create)(2);
  if (!ctx || F(load)(ctx, "parameters.safetensors")) exit(13);
  return ctx;
}

/* Steps ``from`` to ``to`` of one context; 0 when the losses are those expected. */
static int steps(F(context) *ctx, int from, int to) {
  float loss = 0;
  for (int i = from; i < to; ++i)
    if (F(call_step)(ctx, x, y, &loss) || memcmp(&loss, &expected[i], sizeof loss)) return 1;
  return 0;
}

static void *eight_contexts(void *failed) {
  F(context) *contexts[CONTEXTS];
  for (int c = 0; c < CONTEXTS; ++c) contexts[c] = make();
  for (int i = 0; i < STEPS; ++i)
    for (int c = 0; c < CONTEXTS; ++c) *(int *)failed |= steps(contexts[c], i, i + 1);
  for (int c = 0; c < CONTEXTS; ++c) *(int *)failed |= F(context_destroy)(contexts[c]);
  return NULL;
}

static int threads(void) {
  pthread_t all[THREADS];
  int failed[THREADS] = {0}, any = 0;
  for (int i = 0; i < THREADS; ++i)
    if (pthread_create(&all[i], NULL, eight_contexts, &failed[i])) return 1;
  for (int i = 0; i < THREADS; ++i) any |= pthread_join(all[i], NULL) | failed[i];
  return any;
}

/* Half of the steps, then a child and the parent each take the other half. */
static int forks(void) {
  F(context) *ctx = make();
  int status = 1, failed = steps(ctx, 0, STEPS / 2);
  pid_t child = fork();
  if (child == 0) {
    failed |= steps(ctx, STEPS / 2, STEPS) | F(context_destroy)(ctx);
    F(context) *other = make();
    _exit(failed | steps(other, 0, STEPS) | F(context_destroy)(other));
  }
  failed |= steps(ctx, STEPS / 2, STEPS);
  if (child < 0 || waitpid(child, &status, 0) != child) return 1;
  return failed | status | F(context_destroy)(ctx);
}

static long pages(void) {
  long size;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%ld", &size) != 1) exit(14);
  fclose(file);
  return size;
}

static int memory(void) {
  F(context) *ctx = make();
  float loss;
  long before = 0, grown;
  for (int i = 0; i < 10000; ++i) {
    if (i == 100) before = pages();
    if (F(call_step)(ctx, x, y, &loss)) return 1;
  }
  grown = pages() - before;
  if (grown) fprintf(stderr, "%ld pages more\n", grown);
  return grown || F(context_destroy)(ctx);
}

int main(int argc, char **argv) {
  if (argc != 4) return 10;
  x = read_file(argv[2]);
  y = read_file(argv[3]);
  F(context) *ctx = make();
  for (int i = 0; i < STEPS; ++i)
    if (F(call_step)(ctx, x, y, &expected[i])) return 15;
  int failed = F(context_destroy)(ctx);
  if (strcmp(argv[1], "threads") == 0) failed |= threads();
  if (strcmp(argv[1], "fork") == 0) failed |= forks();
  if (strcmp(argv[1], "memory") == 0) failed |= memory();
  for (int i = 0; i < STEPS; ++i) printf("%.9g\n", (double)expected[i]);
  free(x);
  free(y);
  return failed;
}
