// Trains the exported step through the C++ wrapper, in two threads with a context each. In the package's folder:
//
//     c++ -std=c++17 -O2 -I. /path/to/train.cpp -L. -lspirals -Wl,-rpath,. -pthread -o train && ./train
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "spirals.hpp"

namespace {

constexpr int kBatch = 240;

struct Data {
  std::vector<float> x;
  std::vector<std::int64_t> target;
};

Data two_spirals() {
  Data data;
  for (int i = 0; i < kBatch; ++i) {
    const double turn = 1.5 * 3.14159265358979323846 * (i / 2 + 1) / (kBatch / 2), side = i % 2 ? -1 : 1;
    data.x.push_back(static_cast<float>(side * std::cos(turn) * turn / 5));
    data.x.push_back(static_cast<float>(side * std::sin(turn) * turn / 5));
    data.target.push_back(i % 2);
  }
  return data;
}

float train(const Data &data, double rate) {
  spirals_cpp::Context model(1);
  model.load("parameters.safetensors");
  model.set_hyper("lr", rate);
  float loss = 0;
  for (int i = 0; i < 400; ++i) model.step(data.x.data(), data.target.data(), &loss);
  return loss;
}

}  // namespace

int main() try {
  const Data data = two_spirals();
  const std::array<double, 2> rates = {0.003, 0.01};
  std::array<float, 2> losses{};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < rates.size(); ++i) threads.emplace_back([&, i] { losses[i] = train(data, rates[i]); });
  for (auto &t : threads) t.join();
  for (std::size_t i = 0; i < rates.size(); ++i) std::printf("rate %g  loss %.4f\n", rates[i], static_cast<double>(losses[i]));
} catch (const spirals_cpp::Error &e) {
  std::fprintf(stderr, "error %d: %s\n", e.code, e.what());
  return 1;
}
