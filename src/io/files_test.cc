#include "io/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "io/atomic_file.h"
#include "io/file_lock.h"
#include "io/file_size_limit.h"
#include "io/mapped_file.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// Gives up the rights of root, which no file mode stops.
class OrdinaryUser {
 public:
  OrdinaryUser() : is_ordinary_(::geteuid() != 0 || ::seteuid(65534) == 0) {}
  ~OrdinaryUser() {
    if (::getuid() == 0) {
      EXPECT_EQ(::seteuid(0), 0);
    }
  }
  bool is_ordinary() const { return is_ordinary_; }

 private:
  bool is_ordinary_;
};

TEST(ReadTextFile, ReturnsWhatWasWritten) {
  const ScratchFolder folder;
  const std::string contents("one\ntwo\0three", 13);
  ASSERT_TRUE(WriteFileAtomically(folder / "a", contents).ok());
  EXPECT_EQ(*ReadTextFile(folder / "a"), contents);
  ASSERT_TRUE(WriteFileAtomically(folder / "a", "").ok());
  EXPECT_EQ(*ReadTextFile(folder / "a"), "");
  EXPECT_EQ(folder.n_files(), 1);
}

TEST(ReadTextFile, ReadsFilesThatClaimToBeEmpty) {
  const auto text = ReadTextFile("/proc/self/status");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("Pid:"));
}

TEST(ReadTextFile, RefusesMoreThanTheBoundAndTakesExactlyIt) {
  const ScratchFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder / "a", std::string(1000, 'x')).ok());
  EXPECT_EQ(ReadTextFile(folder / "a", 1000)->size(), 1000u);
  const auto too_large = ReadTextFile(folder / "a", 999);
  EXPECT_EQ(too_large.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(too_large.status()), StartsWith(folder / "a" + ": larger than the 999"));
}

TEST(ReadTextFile, NamesAMissingFileAndADirectory) {
  const ScratchFolder folder;
  const auto missing = ReadTextFile(folder / "none");
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(MessageOf(missing.status()),
            folder / "none" + ": cannot open: No such file or directory");
  const auto directory = ReadTextFile(folder.path());
  EXPECT_EQ(directory.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(directory.status()), StartsWith(folder.path() + ": "));
}

TEST(ReadJsonFile, NamesThePlaceOfASyntaxError) {
  const ScratchFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder / "a", R"({"x": [1, 2}])").ok());
  const auto parsed = ReadJsonFile(folder / "a");
  EXPECT_EQ(parsed.status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(MessageOf(parsed.status()), folder / "a" + ": JSON syntax error at byte 12 of 13");
}

TEST(ReadJsonFile, RefusesWhatIsNotJson) {
  const ScratchFolder folder;
  const std::string cases[] = {
      "", "{", "1e999", "{} {}", "\xff", std::string("{}\0", 3), std::string(100'000, '[')};
  for (const std::string& text : cases) {
    ASSERT_TRUE(WriteFileAtomically(folder / "a", text).ok());
    const auto parsed = ReadJsonFile(folder / "a");
    EXPECT_EQ(parsed.status().code(), StatusCode::kDataLoss) << text.substr(0, 10);
    EXPECT_THAT(MessageOf(parsed.status()), StartsWith(folder / "a" + ": "));
  }
}

TEST(ReadJsonFile, ParsesAnObject) {
  const ScratchFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder / "a", "{\"x\": [1, 2.5]}\n").ok());
  EXPECT_EQ((*ReadJsonFile(folder / "a"))["x"][1], 2.5);
}

TEST(WriteFileAtomically, LeavesTheOldFileWhenTheDiskIsFull) {
  const ScratchFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder / "a", "old").ok());
  Status status;
  {
    const FileSizeLimit limit(4096);
    status = WriteFileAtomically(folder / "a", std::string(10'000, 'x'));
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(MessageOf(status), folder / "a" + ": cannot write: File too large");
  EXPECT_EQ(*ReadTextFile(folder / "a"), "old");
  EXPECT_EQ(folder.n_files(), 1) << "the temporary file is still there";
}

TEST(WriteFileAtomically, NamesThePathThatItMayNotWrite) {
  const ScratchFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder / "a", "old").ok());
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0555));
  Status status;
  {
    const OrdinaryUser user;
    if (!user.is_ordinary()) GTEST_SKIP() << "root without the right to become another user";
    status = WriteFileAtomically(folder / "a", "new");
  }
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(MessageOf(status), folder / "a" + ": cannot create: Permission denied");
  EXPECT_EQ(*ReadTextFile(folder / "a"), "old");
}

TEST(WriteFileAtomically, RefusesAMissingFolderADirectoryAndADevice) {
  const ScratchFolder folder;
  EXPECT_EQ(WriteFileAtomically(folder / "none/a", "x").code(), StatusCode::kNotFound);
  EXPECT_EQ(WriteFileAtomically(folder.path(), "x").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(WriteFileAtomically("/dev/full", "x").code(), StatusCode::kInvalidArgument);
}

TEST(WriteFileAtomically, ObeysTheUmask) {
  const ScratchFolder folder;
  const mode_t previous = ::umask(022);
  ASSERT_TRUE(WriteFileAtomically(folder / "a", "x").ok());
  ::umask(previous);
  EXPECT_EQ(std::filesystem::status(folder / "a").permissions(), std::filesystem::perms(0644));
}

TEST(AtomicFile, LeavesNothingWithoutACommit) {
  const ScratchFolder folder;
  {
    auto file = AtomicFile::Create(folder / "a");
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(file->Write("abc", 3).ok());
    EXPECT_FALSE(FileExists(folder / "a"));
  }
  EXPECT_EQ(folder.n_files(), 0);
}

TEST(FileExists, TellsFilesFromDirectories) {
  const ScratchFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder / "a", "x").ok());
  EXPECT_TRUE(FileExists(folder / "a"));
  EXPECT_FALSE(FileExists(folder.path()));
  EXPECT_FALSE(FileExists(folder / "none"));
  EXPECT_TRUE(DirectoryExists(folder.path()));
  EXPECT_FALSE(DirectoryExists(folder / "a"));
}

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  const ScratchFolder folder;
  std::string contents(100'000, '\0');
  for (size_t i = 0; i < contents.size(); ++i) contents[i] = static_cast<char>(i * 7);
  ASSERT_TRUE(WriteFileAtomically(folder / "a", contents).ok());
  auto file = MappedFile::Open(folder / "a");
  ASSERT_TRUE(file.ok()) << file.status();
  const MappedFile moved = std::move(*file);
  const auto as_text = [&] {
    return std::string(reinterpret_cast<const char*>(moved.bytes().data()), moved.bytes().size());
  };
  EXPECT_EQ(as_text(), contents);
  moved.ReleasePages(moved.bytes().data() + 1, moved.n_bytes() - 1);
  EXPECT_EQ(as_text(), contents) << "released pages must come back";
}

TEST(MappedFile, OpensAnEmptyFile) {
  const ScratchFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder / "a", "").ok());
  const auto file = MappedFile::Open(folder / "a");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->n_bytes(), 0);
  EXPECT_TRUE(file->bytes().empty());
}

TEST(MappedFile, RefusesWhatIsNoRegularFile) {
  const ScratchFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::Open(folder / "pipe").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MappedFile::Open(folder.path()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MappedFile::Open(folder / "none").status().code(), StatusCode::kNotFound);
}

TEST(FileLock, HasOneHolder) {
  const ScratchFolder folder;
  {
    const StatusOr<FileLock> held = FileLock::Take(folder / "a");
    ASSERT_TRUE(held.ok());
    const Status again = FileLock::Take(folder / "a").status();
    EXPECT_EQ(again.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(MessageOf(again), StartsWith(folder / "a"));
    EXPECT_THAT(MessageOf(again), HasSubstr("another process is writing it"));
    EXPECT_TRUE(FileLock::Take(folder / "b").ok());
  }
  EXPECT_EQ(folder.n_files(), 0);
  EXPECT_TRUE(FileLock::Take(folder / "a").ok());
}

TEST(FileLock, IsFreeOnceItsHolderIsKilled) {
  const ScratchFolder folder;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const StatusOr<FileLock> held = FileLock::Take(folder / "a");
    ::_exit(held.ok() ? 0 : 1);  // without a destructor
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_TRUE(std::filesystem::exists(folder / "a.lock"));
  EXPECT_TRUE(FileLock::Take(folder / "a").ok());
}

TEST(FileLock, NamesAFolderThatIsMissing) {
  const ScratchFolder folder;
  const Status status = FileLock::Take(folder / "missing/a").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(status), HasSubstr("missing/a.lock: cannot create"));
}

}  // namespace
}  // namespace kvlathe
