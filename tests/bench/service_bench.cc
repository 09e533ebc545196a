// attnd_service_bench [GROUP...]: the server's bars, over loopback.
#include "server/runtime.h"
#include "tests/bench/bars.h"

int main(int argc, char** argv) {
  constexpr attnd::bench::Group kGroups[] = {
      {"attend", attnd::bench::AttendLatencyBars},
      {"append", attnd::bench::AppendLatencyBars},
      {"fairness", attnd::bench::FairnessBars},
  };
  attnd::server::TuneRuntime();
  return attnd::bench::BenchMain(kGroups, argc, argv);
}
