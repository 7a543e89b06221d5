// A stand-in for testlib.h, with what the checkers of these tests use of it.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#ifndef PC_BASE_EXIT_CODE
#define PC_BASE_EXIT_CODE 0
#endif

enum TResult { _ok, _wa, _pe, _fail, _partially = 16 };
#define _pc(points) TResult(_partially + (points))

struct InStream {
    std::ifstream file;
    int readInt(int low = -1000000000, int high = 1000000000, std::string = "");
    std::vector<int> readInts(int count, int low, int high, std::string = "") {
        std::vector<int> values;
        while (count-- > 0) values.push_back(readInt(low, high));
        return values;
    }
} inf, ouf, ans;

template <class... Values>
[[noreturn]] void quitf(TResult result, const char* format, Values... values) {
    if (result == _ok && !(ouf.file >> std::ws).eof()) result = _pe, format = "Extra information";
    std::fprintf(stderr, format, values...);
    std::exit(result >= _partially ? PC_BASE_EXIT_CODE + (result - _partially) : result);
}

inline int InStream::readInt(int low, int high, std::string) {
    int value;
    if (!(file >> value) || value < low || value > high) quitf(_wa, "Expected integer");
    return value;
}

inline void setName(const char*) {}
inline void registerTestlibCmd(int, char** arguments) {
    inf.file.open(arguments[1]);
    ouf.file.open(arguments[2]);
    ans.file.open(arguments[3]);
}
