#include "server/cpu_quota.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace attnd::server {
namespace {

class CpuQuotaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/attnd_quota_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    root_ = {.proc = directory_ + "/proc", .cgroup = directory_ + "/cgroup"};
    Write("proc/meminfo", "MemTotal:       16000000 kB\nMemFree:        1 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Write(const std::string& path, const std::string& contents) {
    const std::filesystem::path full = directory_ + "/" + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << contents;
  }

  std::string directory_;
  SystemRoot root_;
};

constexpr std::int64_t kMachine = 16'000'000LL * 1024;

TEST_F(CpuQuotaTest, WithoutFilesThereIsNoLimit) {
  EXPECT_EQ(CpuQuota(root_), std::nullopt);
  EXPECT_GE(UsableCpus(root_), 1);
  EXPECT_EQ(MemoryLimit(root_), kMachine);
  std::filesystem::remove_all(directory_ + "/proc");
  EXPECT_EQ(MemoryLimit(root_), std::nullopt);
}

TEST_F(CpuQuotaTest, Version2InAContainer) {
  Write("proc/self/cgroup", "0::/\n");
  Write("cgroup/cpu.max", "150000 100000\n");
  Write("cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(CpuQuota(root_), 1.5);
  EXPECT_EQ(MemoryLimit(root_), std::int64_t{1} << 30);
}

TEST_F(CpuQuotaTest, Version2WithoutLimits) {
  Write("proc/self/cgroup", "0::/\n");
  Write("cgroup/cpu.max", "max 100000\n");
  Write("cgroup/memory.max", "max\n");
  EXPECT_EQ(CpuQuota(root_), std::nullopt);
  EXPECT_EQ(MemoryLimit(root_), kMachine);
}

TEST_F(CpuQuotaTest, TheTightestGroupOnTheWayUpCounts) {
  Write("proc/self/cgroup", "0::/kubepods/pod1/box\n");
  Write("cgroup/kubepods/cpu.max", "800000 100000\n");
  Write("cgroup/kubepods/pod1/cpu.max", "50000 100000\n");
  Write("cgroup/kubepods/pod1/box/cpu.max", "max 100000\n");
  Write("cgroup/kubepods/memory.max", "4096\n");
  Write("cgroup/kubepods/pod1/box/memory.max", "8192\n");
  EXPECT_EQ(CpuQuota(root_), 0.5);
  EXPECT_EQ(UsableCpus(root_), 1);
  EXPECT_EQ(MemoryLimit(root_), 4096);
}

TEST_F(CpuQuotaTest, Version1WithJoinedControllers) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/box\n4:memory:/box\n3:cpuset:/\n");
  Write("cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "250000\n");
  Write("cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  Write("cgroup/memory/box/memory.limit_in_bytes", "1000000\n");
  EXPECT_EQ(CpuQuota(root_), 2.5);
  EXPECT_EQ(MemoryLimit(root_), 1'000'000);
}

// A version 1 container sees its own group as the root of the mount, under a path of the host's.
TEST_F(CpuQuotaTest, Version1WhereThePathIsTheHosts) {
  Write("proc/self/cgroup", "5:cpu:/docker/0123\n4:memory:/docker/0123\n");
  Write("cgroup/cpu/cpu.cfs_quota_us", "100000\n");
  Write("cgroup/cpu/cpu.cfs_period_us", "100000\n");
  Write("cgroup/memory/memory.limit_in_bytes", "2000000\n");
  EXPECT_EQ(CpuQuota(root_), 1.0);
  EXPECT_EQ(UsableCpus(root_), 1);
  EXPECT_EQ(MemoryLimit(root_), 2'000'000);
}

TEST_F(CpuQuotaTest, Version1WithoutLimits) {
  Write("proc/self/cgroup", "5:cpu:/\n4:memory:/\n");
  Write("cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("cgroup/cpu/cpu.cfs_period_us", "100000\n");
  Write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(CpuQuota(root_), std::nullopt);
  EXPECT_EQ(MemoryLimit(root_), kMachine);
}

TEST_F(CpuQuotaTest, DamagedFilesCountAsNoLimit) {
  Write("proc/self/cgroup", "garbage\n0::\n0::relative\n:::::\n\n");
  Write("proc/meminfo", "MemTotal: lots kB\n");
  for (const char* text :
       {"", "\n", "x y\n", "0 0\n", "100000 0\n", "-5 100000\n", "1e5 100000\n"}) {
    Write("cgroup/cpu.max", text);
    EXPECT_EQ(CpuQuota(root_), std::nullopt) << text;
    EXPECT_GE(UsableCpus(root_), 1);
  }
  Write("cgroup/memory.max", "0\n");
  EXPECT_EQ(MemoryLimit(root_), std::nullopt);
}

TEST_F(CpuQuotaTest, AHugeQuotaDoesNotOverflow) {
  Write("proc/self/cgroup", "0::/\n");
  Write("cgroup/cpu.max", "9223372036854775807 1\n");
  EXPECT_GE(UsableCpus(root_), 1);
}

TEST_F(CpuQuotaTest, TheRealMachineHasMemory) {
  ASSERT_TRUE(MemoryLimit().has_value());
  EXPECT_GT(*MemoryLimit(), 1 << 20);
}

}  // namespace
}  // namespace attnd::server
