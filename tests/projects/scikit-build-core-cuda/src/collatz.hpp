#pragma once
#include <map>
#include <string>

namespace collatz {

// All throw std::runtime_error with CUDA's words.
int devices();
unsigned long long total(unsigned long long last);
// For each kernel the architecture of the code that the first GPU runs, such as 90; 0 where there is none for it.
std::map<std::string, int> archs();

unsigned long long total_on_host(unsigned long long last);

}  // namespace collatz
