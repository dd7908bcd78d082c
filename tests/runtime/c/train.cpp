// Trains through the C++ wrapper and prints every loss; shows that refusals become exceptions.
#include "regress.hpp"

#include <cstdio>
#include <cstdlib>
#include <utility>

int main(int argc, char **argv) {
  static float x[32 * 5], y[32];
  for (auto file : {std::make_pair(argv[2], x), std::make_pair(argv[3], y)}) {
    std::FILE *f = argc == 4 ? std::fopen(file.first, "rb") : nullptr;
    if (!f || std::fread(file.second, sizeof(float), file.second == x ? 160 : 32, f) == 0) return 1;
    std::fclose(f);
  }
  regress_cpp::Context made(2);
  made.load("parameters.safetensors");
  regress_cpp::Context context(std::move(made));
  float loss;
  for (int i = 0; i < std::atoi(argv[1]); ++i) {
    context.step(x, y, &loss);
    std::printf("loss %.9g\n", static_cast<double>(loss));
  }
  std::size_t count = 0;
  context.state<float>("w", &count);
  if (count != 5 || context.num_threads() != 2) return 2;
  try {
    context.set_hyper("speed", 1);
  } catch (const regress_cpp::Error &e) {
    return e.code == REGRESS_ERR_ARGUMENT ? 0 : 3;
  }
  return 4;
}
