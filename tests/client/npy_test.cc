#include "client/npy.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "client/npy_header.h"

namespace attnd::client {
namespace {

// A file with the given header text and data.
std::string File(const std::string& header, const std::string& data, int version = 1) {
  std::string file("\x93NUMPY", 6);
  file += {static_cast<char>(version), '\0', static_cast<char>(header.size() & 0xff),
           static_cast<char>(header.size() >> 8)};
  if (version > 1) file += {'\0', '\0'};
  return file + header + data;
}

std::string Header(const std::string& descr, const std::string& shape,
                   const std::string& order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': (" + shape + "), }\n";
}

absl::StatusOr<NpyView> Parse(const std::string& file) {
  return ParseNpy(file.data(), file.size());
}

std::string TemporaryFile(const std::string& name) {
  return (std::filesystem::path(::testing::TempDir()) /
          ("attnd_npy_" + std::to_string(::getpid()) + "_" + name))
      .string();
}

TEST(Npy, ReadsVersions1To3) {
  for (const int version : {1, 2, 3}) {
    const std::string file = File(Header("<f4", "2, 3"), std::string(24, 'x'), version);
    const auto array = Parse(file);
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ(array->type, NpyType::kF32);
    EXPECT_EQ(array->shape, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(array->data.size(), 24U);
  }
}

TEST(Npy, ReadsWhatItWrites) {
  const std::vector<float> data = {1, -2, 3.5F, 0, 1e-30F, 7};
  const auto file = FormatNpy(F32(data, {2, 1, 3}));
  ASSERT_TRUE(file.ok());
  const auto array = Parse(*file);
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_EQ((array->data.data() - file->data()) % 64, 0);
  const auto tensor = TokensOf(*array, "keys");
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(*ToFloats(*tensor), data);
  EXPECT_EQ(tensor->shape, (std::vector<std::int64_t>{2, 1, 3}));
  EXPECT_TRUE(Parse(*FormatNpy(F32(data, {6}))).ok());
  EXPECT_FALSE(FormatNpy({v1::BF16, {1}, {}}).ok());
}

TEST(Npy, ReadsScalarsAndEmptyArraysAndMasks) {
  EXPECT_TRUE(Parse(File(Header("<f4", ""), std::string(4, 'x'))).ok());
  EXPECT_TRUE(Parse(File(Header("<f4", "0, 64"), "")).ok());
  const std::string mask = File(Header("|b1", "3,"), std::string("\1\0\1", 3));
  ASSERT_TRUE(Parse(mask).ok());
  EXPECT_EQ(Parse(mask)->type, NpyType::kU8);
  EXPECT_FALSE(TokensOf(*Parse(mask), "keys").ok());
}

TEST(Npy, KeysInAnyOrderAndEitherQuotes) {
  EXPECT_TRUE(Parse(File("{\"shape\":(1,),'fortran_order':False,'descr':\"<f2\"}", "xx")).ok());
}

TEST(Npy, RefusesIntegersByNameAndSaysHowToConvert) {
  const auto array = Parse(File(Header("<i4", "1,"), "xxxx"));
  EXPECT_EQ(array.status().message(),
            "npy: element type '<i4' is not supported; convert with array.astype('<f4') or '<f2'");
  EXPECT_FALSE(Parse(File(Header(">f4", "1,"), "xxxx")).ok());
  EXPECT_FALSE(Parse(File(Header("<f8", "1,"), "xxxxxxxx")).ok());
  EXPECT_FALSE(Parse(File(Header("|O", "1,"), "xxxxxxxx")).ok());
}

TEST(Npy, ErrorsDoNotEchoControlCharacters) {
  const auto array = Parse(File(Header("<i4\x1b[2J\n\x01", "1,"), "xxxx"));
  ASSERT_FALSE(array.ok());
  for (const char c : std::string(array.status().message())) EXPECT_GE(c, ' ');
}

TEST(Npy, RefusesFortranOrder) {
  EXPECT_FALSE(Parse(File(Header("<f4", "1, 1", "True"), "xxxx")).ok());
}

TEST(Npy, RefusesShapesThatDoNotFitTheFile) {
  EXPECT_FALSE(Parse(File(Header("<f4", "2,"), "xxxx")).ok());
  EXPECT_FALSE(Parse(File(Header("<f4", "1,"), "xxxxx")).ok());
  EXPECT_FALSE(Parse(File(Header("<f4", "1099511627776, 64"), "xxxx")).ok());
  // 2^32 * 2^32 * 4 is 0 in 64 bits.
  EXPECT_FALSE(Parse(File(Header("<f4", "4294967296, 4294967296"), "")).ok());
  EXPECT_FALSE(Parse(File(Header("<f4", "9223372036854775808,"), "xxxx")).ok());
  EXPECT_FALSE(Parse(File(Header("<f4", "-1,"), "xxxx")).ok());
  // A zero size must not hide the overflow of the others.
  EXPECT_FALSE(Parse(File(Header("<f4", "4294967296, 4294967296, 4294967296, 0"), "")).ok());
}

TEST(Npy, RefusesMalformedHeaders) {
  for (const char* header :
       {"", "{", "{}", "[]", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,}",
        "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (1,)}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} 5",
        "{'descr': '<f4, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}"}) {
    EXPECT_FALSE(Parse(File(header, "xxxx")).ok()) << header;
  }
  std::string many;
  for (int i = 0; i < 33; ++i) many += "1, ";
  EXPECT_FALSE(Parse(File(Header("<f4", many), "xxxx")).ok());
}

TEST(Npy, EveryTruncationIsRefused) {
  for (const int version : {1, 2}) {
    const std::string file = File(Header("<f4", "4, 2"), std::string(32, 'x'), version);
    ASSERT_TRUE(Parse(file).ok());
    for (std::size_t size = 0; size < file.size(); ++size) {
      // A copy of exactly this size, so that a read past the end is seen by the sanitizers.
      const std::vector<char> cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_FALSE(ParseNpy(cut.data(), cut.size()).ok()) << size;
    }
  }
  EXPECT_FALSE(ParseNpy(nullptr, 0).ok());
}

TEST(Npy, RandomDamageNeverCrashes) {
  std::mt19937 random(7);
  const std::string file = File(Header("<f4", "4, 2"), std::string(32, 'x'), 2);
  for (int round = 0; round < 20000; ++round) {
    std::vector<char> damaged(file.begin(), file.end());
    for (unsigned i = 0; i <= random() % 4; ++i) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    const auto array = ParseNpy(damaged.data(), damaged.size());
    if (!array.ok()) continue;
    EXPECT_LE(array->data.size(), damaged.size());
    EXPECT_GE(array->data.data(), damaged.data());
  }
}

TEST(Npy, ShapesOfTokens) {
  const std::string matrix = File(Header("<f4", "2, 3"), std::string(24, 'x'));
  EXPECT_EQ(TokensOf(*Parse(matrix), "keys")->shape, (std::vector<std::int64_t>{2, 1, 3}));
  const std::string vector = File(Header("<f4", "6,"), std::string(24, 'x'));
  EXPECT_EQ(TokensOf(*Parse(vector), "keys").status().message(),
            "keys: shape (6) is neither (n, d) nor (n, heads, d)");
  const std::string empty = File(Header("<f4", "0, 3"), "");
  EXPECT_FALSE(TokensOf(*Parse(empty), "keys").ok());
}

TEST(Npy, Files) {
  const std::vector<float> data = {1, 2, 3};
  const std::string path = TemporaryFile("array.npy");
  ASSERT_TRUE(WriteNpyFile(path, F32(data, {3, 1, 1})).ok());
  auto file = ReadNpyFile(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const NpyFile moved = *std::move(file);
  EXPECT_EQ(*ToFloats(*TokensOf(moved.array, "x")), data);
  std::filesystem::remove(path);

  EXPECT_EQ(ReadNpyFile(path).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadNpyFile(::testing::TempDir()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(WriteNpyFile("/nonexistent/x.npy", F32(data, {3, 1, 1})).ok());
}

// `--out /dev/null` once replaced the device by a file.
TEST(Npy, WhatIsNotAFileIsWrittenToAndNotReplaced) {
  const std::vector<float> data = {1, 2, 3};
  const std::string pipe = TemporaryFile("pipe.npy");
  std::filesystem::remove(pipe);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_TRUE(WriteNpyFile(pipe, F32(data, {3, 1, 1})).ok());
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  char bytes[256];
  const ssize_t count = read(reader, bytes, sizeof bytes);
  ASSERT_GT(count, 0);
  EXPECT_TRUE(ParseNpy(bytes, static_cast<std::size_t>(count)).ok());
  close(reader);
  // Opening a pipe that nobody writes would wait for ever.
  EXPECT_EQ(ReadNpyFile(pipe).status().code(), absl::StatusCode::kNotFound);
  std::filesystem::remove(pipe);
}

TEST(Npy, ALinkStaysALink) {
  const std::vector<float> data = {1, 2, 3};
  const std::string target = TemporaryFile("target.npy");
  const std::string link = TemporaryFile("link.npy");
  std::filesystem::remove(link);
  std::filesystem::create_symlink(target, link);
  EXPECT_TRUE(WriteNpyFile(link, F32(data, {3, 1, 1})).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(ReadNpyFile(target).ok());
  std::filesystem::remove(link);
  std::filesystem::remove(target);
}

#ifndef ATTND_SANITIZED  // AddressSanitizer ends the process instead of throwing
// A sparse file costs nothing to make.
TEST(Npy, AFileLargerThanMemoryIsRefused) {
  const std::string path = TemporaryFile("huge.npy");
  std::ofstream(path).put('x');
  std::filesystem::resize_file(path, std::uintmax_t{1} << 43);
  const absl::Status status = ReadNpyFile(path).status();
  std::filesystem::remove(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}
#endif

}  // namespace
}  // namespace attnd::client
