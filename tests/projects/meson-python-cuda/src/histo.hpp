#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace histo {

using Bins = std::array<std::uint32_t, 256>;

// All throw std::runtime_error with CUDA's words.
int devices();
Bins histogram(const std::uint8_t *bytes, std::size_t count);
// For each kernel the architecture of the code that the first GPU runs, such as 90; 0 where there is none for it.
std::map<std::string, int> archs();

Bins histogram_on_host(const std::uint8_t *bytes, std::size_t count);

}  // namespace histo
