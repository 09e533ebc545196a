// attnd_engine_bench [GROUP...]: the engine's bars, on one core.
#include "tests/bench/bars.h"

int main(int argc, char** argv) {
  constexpr attnd::bench::Group kGroups[] = {
      {"exact", attnd::bench::ExactBars},
      {"linear", attnd::bench::LinearBars},
      {"gated", attnd::bench::GatedBars},
      {"window", attnd::bench::WindowBars},
  };
  return attnd::bench::BenchMain(kGroups, argc, argv);
}
