// attnd_kde_bench: the bars of kernel density estimates, on one core. ATTND_WORD_VECTORS names the
// file that scripts/fetch_word_vectors.sh fetches; without it the shared folder's vectors have to
// do.
#include "tests/bench/bars.h"

int main(int argc, char** argv) {
  constexpr attnd::bench::Group kGroups[] = {{"kde", attnd::bench::KdeBars}};
  return attnd::bench::BenchMain(kGroups, argc, argv);
}
