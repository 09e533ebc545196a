#include <cstdio>
#include <string>
#include <vector>

#include "tests/bench/bars.h"
#include "tests/bench/machine.h"

namespace attnd::bench {
namespace {

bool Passes(const Bar& bar) {
  return bar.at_most ? bar.value <= bar.target : bar.value >= bar.target;
}

}  // namespace

// Told from every other failure by scripts/bench.sh.
constexpr int kBarFailed = 3;

int BenchMain(std::span<const Group> groups, int argc, char** argv) {
  const std::vector<std::string> names(argv + 1, argv + argc);
  std::vector<Group> chosen;
  for (const std::string& name : names) {
    for (const Group& group : groups) {
      if (name == group.name) chosen.push_back(group);
    }
  }
  if (chosen.size() < names.size()) {
    std::fprintf(stderr, "unknown group; known are:");
    for (const Group& group : groups) std::fprintf(stderr, " %s", group.name);
    std::fprintf(stderr, "\n");
    return 2;
  }
  if (names.empty()) chosen.assign(groups.begin(), groups.end());

  if (!PrepareMachine()) return 1;
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
  return all_pass ? 0 : kBarFailed;
}

}  // namespace attnd::bench
