// Runs the engine's bars: attnd_engine_bench [GROUP...], all groups without arguments. Prints what
// was measured and ends with one line per bar, `bar NAME VALUE TARGET pass|fail`. Exit status: 0
// when all pass, 1 when one fails, 2 for an unknown group.
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "engine/cpu.h"
#include "engine/gemm.h"
#include "tests/bench/bars.h"

namespace attnd::bench {
namespace {

struct Group {
  const char* name;
  std::vector<Bar> (*bars)(const BenchOptions& options);
};

constexpr Group kGroups[] = {
    {"exact", ExactBars},
    {"linear", LinearBars},
};

bool Passes(const Bar& bar) {
  return bar.at_most ? bar.value <= bar.target : bar.value >= bar.target;
}

int Main(const std::vector<std::string>& names) {
  std::vector<Group> chosen;
  for (const std::string& name : names) {
    for (const Group& group : kGroups) {
      if (name == group.name) chosen.push_back(group);
    }
  }
  if (chosen.size() < names.size()) {
    std::fprintf(stderr, "unknown group; known are:");
    for (const Group& group : kGroups) std::fprintf(stderr, " %s", group.name);
    std::fprintf(stderr, "\n");
    return 2;
  }
  if (names.empty()) chosen.assign(std::begin(kGroups), std::end(kGroups));

  const char* isa = std::getenv("ATTND_ISA");
  absl::Status status = engine::PinIsa(isa == nullptr ? "native" : isa);
  status.Update(engine::GemmInitThread());
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  std::printf("instruction set %s\n", engine::ActiveIsa().c_str());
  std::vector<Bar> bars;
  for (const Group& group : chosen) {
    for (const Bar& bar : group.bars({})) bars.push_back(bar);
  }
  bool all_pass = true;
  for (const Bar& bar : bars) {
    all_pass = all_pass && Passes(bar);
    std::printf("bar %s %.3g %.3g %s\n", bar.name.c_str(), bar.value, bar.target,
                Passes(bar) ? "pass" : "fail");
  }
  return all_pass ? 0 : 1;
}

}  // namespace
}  // namespace attnd::bench

int main(int argc, char** argv) {
  return attnd::bench::Main(std::vector<std::string>(argv + 1, argv + argc));
}
