// Command-line options of the examples: --name VALUE, --name=VALUE and flags.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice::examples {

class Options {
 public:
  Options(std::string program, std::string purpose) : program_(std::move(program)), purpose_(std::move(purpose)) {}
  void add(std::string name, std::string& value, std::string help);
  /// A number from `lowest` on; by default from 1 on, or from the value that the variable has if that is less.
  void add(std::string name, int64_t& value, std::string help, std::optional<int64_t> lowest = {});
  void add(std::string name, double& value, std::string help);
  void flag(std::string name, bool& value, std::string help);
  /// Fills the variables. Throws std::runtime_error naming an unknown option or a bad value; --help prints all and ends
  /// run_program().
  void parse(int argc, char** argv) const;

 private:
  struct Entry {
    std::string name, help;
    std::string* text = nullptr;
    int64_t* integer = nullptr;
    int64_t lowest = 0;
    double* real = nullptr;
    bool* flag = nullptr;
  };
  std::string program_, purpose_;
  std::vector<Entry> entries_;
};

/// All that main() does: the status is that of program(argc, argv), 0 after --help, and 1 for an exception, which is printed.
int run_program(int (*program)(int, char**), int argc, char** argv);

}  // namespace sluice::examples
