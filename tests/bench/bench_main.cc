#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/cpu.h"
#include "engine/gemm.h"
#include "tests/bench/bars.h"

namespace attnd::bench {
namespace {

bool Passes(const Bar& bar) {
  return bar.at_most ? bar.value <= bar.target : bar.value >= bar.target;
}

// The CPU's name as the kernel gives it.
std::string CpuName() {
  const std::string field = "model name";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field, 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
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

  const char* isa = std::getenv("ATTND_ISA");
  absl::Status status = engine::PinIsa(isa == nullptr ? "native" : isa);
  status.Update(engine::GemmInitThread());
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  std::printf("machine %s, %u CPUs, instruction set %s\n", CpuName().c_str(),
              std::thread::hardware_concurrency(), engine::ActiveIsa().c_str());
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
