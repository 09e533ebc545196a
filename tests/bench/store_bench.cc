// attnd_store_bench [GROUP...]: the bars of the store on disk.
#include "tests/bench/bars.h"

int main(int argc, char** argv) {
  constexpr attnd::bench::Group kGroups[] = {{"append", attnd::bench::StoreBars}};
  return attnd::bench::BenchMain(kGroups, argc, argv);
}
