#include "client/npy.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/npy_header.h"

namespace attnd::client {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr std::size_t kAlignment = 64;

std::size_t Byte(const char* data, std::size_t at) { return static_cast<unsigned char>(data[at]); }

absl::StatusOr<NpyType> TypeOf(const std::string& descr) {
  if (descr == "<f4") return NpyType::kF32;
  if (descr == "<f2") return NpyType::kF16;
  if (descr == "|u1" || descr == "|b1") return NpyType::kU8;
  // Echoed with only the characters that a type name can have: the file may be hostile.
  std::string name;
  for (const char c : descr) {
    if (std::string_view("<>|=").find(c) != std::string_view::npos || (c >= '0' && c <= '9') ||
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      name += c;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("npy: element type '", name,
                   "' is not supported; convert with array.astype('<f4') or '<f2'"));
}

std::int64_t BytesOf(NpyType type) {
  switch (type) {
    case NpyType::kF32:
      return 4;
    case NpyType::kF16:
      return 2;
    case NpyType::kU8:
      return 1;
  }
  return 0;
}

absl::Status WithPath(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<NpyView> ParseNpy(const char* data, std::size_t size) {
  if (size < 10 || std::string_view(data, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError("npy: not a .npy file (the magic bytes are missing)");
  }
  const std::size_t version = Byte(data, 6);
  if (version < 1 || version > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("npy: format version ", version, " is not 1, 2 or 3"));
  }
  const std::size_t prefix = version == 1 ? 10 : 12;
  if (size < prefix) return absl::InvalidArgumentError("npy: the file ends inside its header");
  std::size_t length = Byte(data, 8) | Byte(data, 9) << 8;
  if (version != 1) length |= Byte(data, 10) << 16 | Byte(data, 11) << 24;
  if (length > size - prefix) {
    return absl::InvalidArgumentError("npy: the file ends inside its header");
  }

  auto header = ParseNpyHeader(std::string_view(data + prefix, length));
  if (!header.ok()) return header.status();
  if (header->fortran_order) {
    return absl::InvalidArgumentError(
        "npy: Fortran order is not supported; convert with numpy.ascontiguousarray");
  }
  const auto type = TypeOf(header->descr);
  if (!type.ok()) return type.status();

  const std::size_t available = size - prefix - length;
  std::int64_t bytes = BytesOf(*type);
  bool overflow = false;
  for (const std::int64_t dimension : header->shape) {
    overflow = overflow || __builtin_mul_overflow(bytes, dimension, &bytes);
  }
  if (overflow || static_cast<std::size_t>(bytes) != available) {
    return absl::InvalidArgumentError(
        absl::StrCat("npy: shape (", absl::StrJoin(header->shape, ", "), ") of type '",
                     header->descr, "' does not fit the ", available, " bytes of data"));
  }
  return NpyView{*type, std::move(header->shape), {data + prefix + length, available}};
}

absl::StatusOr<NpyFile> ReadNpyFile(const std::string& path) {
  std::error_code error;
  // Before it is opened: opening a pipe waits for its writer.
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": is not a file that can be read"));
  }
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = stream ? static_cast<std::streamoff>(stream.tellg()) : -1;
  if (size < 0) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  NpyFile file;
  try {
    file.bytes.resize(static_cast<std::size_t>(size));
  } catch (const std::exception&) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": there is no memory for its ", size, " bytes"));
  }
  stream.seekg(0);
  if (!stream.read(file.bytes.data(), size)) {
    return absl::DataLossError(absl::StrCat(path, ": cannot be read"));
  }
  auto array = ParseNpy(file.bytes.data(), file.bytes.size());
  if (!array.ok()) return WithPath(path, array.status());
  file.array = *std::move(array);
  return file;
}

absl::StatusOr<ConstTensor> TokensOf(const NpyView& array, const std::string& field) {
  if (array.type == NpyType::kU8) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": elements are bytes, expected f4 or f2"));
  }
  std::vector<std::int64_t> shape = array.shape;
  if (shape.size() == 2) shape.insert(shape.begin() + 1, 1);
  if (shape.size() != 3 || shape[0] < 1) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": shape (",
                                                   absl::StrJoin(array.shape, ", "),
                                                   ") is neither (n, d) nor (n, heads, d)"));
  }
  return ConstTensor{array.type == NpyType::kF32 ? v1::F32 : v1::F16, std::move(shape), array.data};
}

absl::StatusOr<std::string> FormatNpy(const ConstTensor& tensor) {
  if (tensor.dtype != v1::F32 && tensor.dtype != v1::F16) {
    return absl::InvalidArgumentError("npy: only F32 and F16 can be written");
  }
  std::string header =
      absl::StrCat("{'descr': '", tensor.dtype == v1::F32 ? "<f4" : "<f2",
                   "', 'fortran_order': False, 'shape': (", absl::StrJoin(tensor.shape, ", "),
                   tensor.shape.size() == 1 ? ",), }" : "), }");
  // The header is padded so that the elements are aligned, and ends in a newline.
  const std::size_t unpadded = kMagic.size() + 4 + header.size() + 1;
  header.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  header += '\n';
  std::string file(kMagic);
  file += {'\x01', '\x00', static_cast<char>(header.size() & 0xff),
           static_cast<char>(header.size() >> 8)};
  file += header;
  file.append(tensor.bytes.data(), tensor.bytes.size());
  return file;
}

absl::Status WriteNpyFile(const std::string& path, const ConstTensor& tensor) {
  const auto bytes = FormatNpy(tensor);
  if (!bytes.ok()) return WithPath(path, bytes.status());
  // A link stays a link; a pipe or a device is written to, not replaced.
  std::error_code error;
  constexpr int kMaxLinks = 40;
  std::filesystem::path target = path;
  for (int i = 0; i < kMaxLinks && std::filesystem::is_symlink(target, error); ++i) {
    target = target.parent_path() / std::filesystem::read_symlink(target, error);
  }
  const bool replaceable =
      !std::filesystem::exists(target, error) || std::filesystem::is_regular_file(target, error);
  const std::string temporary =
      replaceable ? absl::StrCat(target.string(), ".tmp", ::getpid()) : target.string();
  {
    std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
    stream.write(bytes->data(), static_cast<std::streamsize>(bytes->size()));
    stream.flush();
    if (!stream) {
      if (replaceable) std::remove(temporary.c_str());
      return absl::PermissionDeniedError(absl::StrCat(path, ": cannot be written"));
    }
  }
  if (!replaceable) return absl::OkStatus();
  std::filesystem::rename(temporary, target, error);
  if (error) {
    std::remove(temporary.c_str());
    return absl::PermissionDeniedError(absl::StrCat(path, ": ", error.message()));
  }
  return absl::OkStatus();
}

}  // namespace attnd::client
