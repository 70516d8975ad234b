#include <sluice/core/text/file.h>

#include <sluice/core/error.h>
#include "support/catch.h"
#include "support/child.h"
#include "support/temp_folder.h"

#include <filesystem>
#include <fstream>
#include <optional>

#if defined(__linux__)
#include <sched.h>
#endif

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("file: a path with a NUL is refused, not cut short", "[file]") {
  TempFolder folder;
  const auto put = [](FileWriter& out) { out.write("new"); };
  write_file_atomically(folder / "real", put);
  const std::string other = (folder / "real") + std::string("\0.txt", 5);
  const auto refusal = Contains("real\\0.txt' has a NUL");
  CHECK_THROWS_WITH(read_file(other), refusal);
  CHECK_THROWS_AS(FileReader(other), IOError);
  CHECK_THROWS_WITH(write_file_atomically(other, put), refusal);
  CHECK_THROWS_WITH(FolderLock(other), refusal);
  CHECK(folder.count() == 1);
}

TEST_CASE("file: a name may be as long as the system lets it", "[file]") {
  TempFolder folder;
  for (const std::string& name : {std::string(255, 'a'), "b" + std::string(198, 'b') + "€" + std::string(50, 'b')}) {
    write_file_atomically(folder / name, [](FileWriter& out) { out.write("new"); });
    CHECK(read_file(folder / name) == "new");
  }
  CHECK(folder.count() == 2);
  CHECK_THROWS_AS(write_file_atomically(folder / std::string(256, 'a'), [](FileWriter&) {}), IOError);
}

TEST_CASE("file: an empty path is refused; a link to a file that does not exist yet makes that file", "[file]") {
  namespace fs = std::filesystem;
  TempFolder folder;
  const auto put = [](FileWriter& out) { out.write("new"); };
  CHECK_THROWS_AS(write_file_atomically("", put), IOError);
  fs::create_directory(folder / "sub");
  fs::create_symlink("sub/second", folder / "first");
  fs::create_symlink("../file", folder / "sub/second");
  write_file_atomically(folder / "first", put);
  CHECK(fs::is_symlink(folder / "first"));
  CHECK(fs::is_symlink(folder / "sub/second"));
  CHECK(read_file(folder / "file") == "new");
  fs::create_symlink("circle", folder / "circle");
  CHECK_THROWS_AS(write_file_atomically(folder / "circle", put), IOError);
}

TEST_CASE("file: a folder is locked by one run, and free when that ends, however it ends", "[file]") {
  TempFolder folder;
  const std::string out = folder / "a/run";
  const auto lock = [&] { return FolderLock(out), std::string("locked"); };
  {
    std::optional<FolderLock> mine(out);  // makes the folder
    const auto in_use = Contains("'" + out + "' is in use by process " + std::to_string(::getpid()));
    CHECK_THROWS_AS(FolderLock(out), IOError);
    CHECK_THROWS_WITH(FolderLock(out), in_use);
    CHECK_THAT(in_child(lock), in_use);
    CHECK_NOTHROW(FolderLock(folder / "a"));  // another folder
  }
  CHECK(std::filesystem::is_empty(out));
  CHECK(lock() == "locked");

  // A process that is killed removes nothing, and holds nothing.
  CHECK(in_child([&]() -> std::string {
          FolderLock mine(out);
          ::raise(SIGKILL);
          return "lives";
        }) == "dies");
  CHECK(!std::filesystem::is_empty(out));
  CHECK(lock() == "locked");
  std::ofstream(folder / "file") << "kept";
  CHECK_THROWS_WITH(FolderLock(folder / "file"), Contains("cannot make the folder"));
  std::filesystem::create_symlink(folder / "file", out + "/.lock");  // would be emptied through the link
  CHECK_THROWS_WITH(lock(), Contains("cannot write to the folder"));
  CHECK(read_file(folder / "file") == "kept");
}

#if defined(__linux__)
TEST_CASE("file: who holds a folder is named with the whole name of its machine", "[file]") {
  TempFolder folder;
  const std::string host(64, 'h');  // the longest that Linux allows
  const std::string said = in_child([&]() -> std::string {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWUTS) != 0) return "may not be named";
    if (::sethostname(host.data(), host.size()) != 0) return "may not be named";
    const FolderLock mine(folder / "run");
    return FolderLock(folder / "run"), "locked";
  });
  if (said == "may not be named") return;  // containers may forbid it
  CHECK_THAT(said, Contains("is in use by process ") && Contains(" of " + host + ";"));
}
#endif
