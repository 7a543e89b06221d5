// The interface of testlib that checkers use, written from its public documentation
// (https://codeforces.com/testlib). Validators, interactors, generators and `rnd` are not included.
//
// A checker is run as `checker INPUT OUTPUT ANSWER`. Its exit status is 0 for an accepted output,
// 1 for a wrong one, 2 for a wrong format, 3 if the checker or the test is wrong, 7 for points.

#ifndef REWARDFLEET_TESTLIB_H
#define REWARDFLEET_TESTLIB_H

// Checkers rely on the headers that testlib includes.
#include <algorithm>
#include <cassert>
#include <cctype>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <set>
#include <sstream>
#include <stack>
#include <string>
#include <utility>
#include <vector>
#include <unistd.h>

enum TResult {
    _ok = 0,
    _wa = 1,
    _pe = 2,
    _fail = 3,
    _dirt = 4,
    _points = 7,
    _unexpected_eof = 8,
    _partially = 16
};
#define _pc(share) (TResult(_partially + (share)))

enum TMode { _input, _output, _answer };

#define LF ((char)10)
#define CR ((char)13)
#define TAB ((char)9)
#define SPACE ((char)' ')
#define EOFC (255)

// Texts

inline std::string testlib_vformat(const char *text, va_list arguments) {
    va_list copy;
    va_copy(copy, arguments);
    int size = std::vsnprintf(nullptr, 0, text, copy);
    va_end(copy);
    if (size < 0) return text;
    std::string result(size_t(size) + 1, '\0');
    std::vsnprintf(&result[0], result.size(), text, arguments);
    result.resize(size_t(size));
    return result;
}

// Defines `result`, a text with the arguments of a function that ends with `text, ...`.
#define TESTLIB_FORMAT(text, result)                               \
    va_list testlib_arguments;                                     \
    va_start(testlib_arguments, text);                             \
    std::string result = testlib_vformat(text, testlib_arguments); \
    va_end(testlib_arguments)

__attribute__((format(printf, 1, 2))) inline std::string format(const char *text, ...) {
    TESTLIB_FORMAT(text, result);
    return result;
}

template <typename T> std::string vtos(const T &value) {
    std::ostringstream stream;
    stream << std::setprecision(10) << value;
    return stream.str();
}

template <typename T> std::string toString(const T &value) { return vtos(value); }

inline bool isEof(char c) { return c == (char)EOFC; }
inline bool isEoln(char c) { return c == LF || c == CR; }
inline bool isBlanks(char c) { return isEoln(c) || c == SPACE || c == TAB; }

inline std::string upperCase(std::string s) {
    for (char &c : s)
        if ('a' <= c && c <= 'z') c = char(c - 'a' + 'A');
    return s;
}

inline std::string lowerCase(std::string s) {
    for (char &c : s)
        if ('A' <= c && c <= 'Z') c = char(c - 'A' + 'a');
    return s;
}

inline std::string compress(const std::string &s) {
    std::string result = s.size() <= 64 ? s : s.substr(0, 30) + "..." + s.substr(s.size() - 31);
    for (char &c : result)
        if ((unsigned char)c < 32) c = '.';
    return result;
}

inline std::string trim(const std::string &s) {
    size_t first = 0, last = s.size();
    while (first < last && isBlanks(s[first])) first++;
    while (first < last && isBlanks(s[last - 1])) last--;
    return s.substr(first, last - first);
}

template <typename It> std::string join(It first, It last, const std::string &separator) {
    std::ostringstream stream;
    for (It it = first; it != last; ++it) stream << (it == first ? "" : separator) << *it;
    return stream.str();
}
template <typename It> std::string join(It first, It last, char separator) {
    return join(first, last, std::string(1, separator));
}
template <typename C> std::string join(const C &items, const std::string &separator) {
    return join(items.begin(), items.end(), separator);
}
template <typename C> std::string join(const C &items, char separator = ' ') {
    return join(items.begin(), items.end(), separator);
}

// The parts between separators; of `tokenize`, those that are not empty.
inline std::vector<std::string> split(const std::string &s, char separator) {
    std::vector<std::string> parts(1);
    for (char c : s) {
        if (c == separator) parts.emplace_back();
        else parts.back() += c;
    }
    return parts;
}
inline std::vector<std::string> tokenize(const std::string &s, char separator) {
    std::vector<std::string> parts = split(s, separator);
    parts.erase(std::remove(parts.begin(), parts.end(), std::string()), parts.end());
    return parts;
}

inline std::string englishEnding(int x) {
    x %= 100;
    if (x / 10 == 1) return "th";
    return x % 10 == 1 ? "st" : x % 10 == 2 ? "nd" : x % 10 == 3 ? "rd" : "th";
}

// Patterns: characters, classes, groups, alternatives and quantifiers. A repeated character takes
// as many characters as it can: `[0-9]?1` does not match `1`. Spaces count only after a backslash.

class pattern {
    typedef std::set<size_t> Ends;
    std::string source;

    struct Matcher {
        const std::string &p, &s;
        size_t i;

        // Each returns where a match can end, of those that begin at `starts`.
        Ends alternatives(const Ends &starts) {
            Ends all = sequence(starts);
            while (i < p.size() && p[i] == '|') {
                i++;
                Ends more = sequence(starts);
                all.insert(more.begin(), more.end());
            }
            return all;
        }

        Ends sequence(Ends at) {
            while (i < p.size() && p[i] != '|' && p[i] != ')') {
                if (p[i] == ' ') i++;
                else at = p[i] == '(' ? group(at) : repeated(at);
            }
            return at;
        }

        Ends group(Ends at) {
            size_t begin = ++i, least, most;
            alternatives(Ends());
            i++;
            quantifier(least, most);
            size_t end = i;
            Ends result;
            for (size_t count = 0;; count++) {
                size_t known = result.size();
                if (count >= least) result.insert(at.begin(), at.end());
                bool is_new = count < least || result.size() > known;
                if (count == most || at.empty() || !is_new) break;
                i = begin;
                at = alternatives(at);
            }
            i = end;
            return result;
        }

        Ends repeated(const Ends &starts) {
            std::vector<bool> allowed(256, false);
            if (p[i] == '[') {
                i++;
                bool negated = i < p.size() && p[i] == '^';
                if (negated) i++;
                while (i < p.size() && p[i] != ']') {
                    unsigned char low = character(), high = low;
                    if (i + 1 < p.size() && p[i] == '-' && p[i + 1] != ']') {
                        i++;
                        high = character();
                    }
                    for (int c = low; c <= high; c++) allowed[size_t(c)] = true;
                }
                i++;
                if (negated) allowed.flip();
            } else {
                allowed[character()] = true;
            }
            size_t least, most;
            quantifier(least, most);
            Ends result;
            for (size_t start : starts) {
                size_t end = start;
                while (end < s.size() && end - start < most && allowed[(unsigned char)s[end]]) end++;
                if (end - start >= least) result.insert(end);
            }
            return result;
        }

        unsigned char character() {
            if (p[i] == '\\' && i + 1 < p.size()) i++;
            return (unsigned char)p[i++];
        }

        void quantifier(size_t &least, size_t &most) {
            least = most = 1;
            char c = i < p.size() ? p[i] : '\0';
            if (c == '?' || c == '*' || c == '+') {
                i++;
                least = c == '+';
                most = c == '?' ? 1 : std::string::npos;
            } else if (c == '{') {
                size_t close = std::min(p.find('}', i), p.size());
                std::string inside = p.substr(i + 1, close - i - 1);
                size_t comma = inside.find(',');
                least = most = std::strtoul(inside.c_str(), nullptr, 10);
                if (comma != std::string::npos) {
                    bool is_open = trim(inside.substr(comma + 1)).empty();
                    most = std::strtoul(inside.c_str() + comma + 1, nullptr, 10);
                    if (is_open) most = std::string::npos;
                }
                i = close + 1;
            }
        }
    };

public:
    pattern(const std::string &text) : source(text) {}
    bool matches(const std::string &text) const {
        Matcher matcher = {source, text, 0};
        return matcher.alternatives(Ends{0}).count(text.size()) > 0;
    }
    std::string src() const { return source; }
};

// Ending

struct TestlibState {
    bool registered = false, finished = false;
    std::string test_case;
    ~TestlibState() {
        if (registered && !finished) finish(_fail, "the checker must end with quit or quitf");
    }
    [[noreturn]] void finish(int result, const std::string &message) {
        finished = true;
        const char *prefix = result == _ok       ? "ok "
                             : result == _wa     ? "wrong answer "
                             : result == _fail   ? "FAIL "
                             : result == _points ? "points "
                             : result < 16       ? "wrong output format "
                                                 : "partially correct ";
        std::cout.flush();
        std::fflush(nullptr);
        std::fprintf(stderr, "%s%s%s\n", prefix, test_case.c_str(), message.c_str());
        std::fflush(nullptr);
        _exit(result == _unexpected_eof ? _pe : result);
    }
};
inline TestlibState testlib_state;

// Defines `quitf` and the like, which end the checker, as functions of a stream or of all.
#define TESTLIB_QUITS(target)                                                                   \
    [[noreturn]] inline void quits(TResult result, const std::string &message) {                \
        target(result, message);                                                                \
    }                                                                                           \
    [[noreturn]] inline void quit(TResult result, const std::string &message) {                 \
        target(result, message);                                                                \
    }                                                                                           \
    [[noreturn]] inline void quitf(TResult result, const char *text, ...) {                     \
        TESTLIB_FORMAT(text, message);                                                          \
        target(result, message);                                                                \
    }                                                                                           \
    inline void quitif(bool condition, TResult result, const char *text, ...) {                 \
        TESTLIB_FORMAT(text, message);                                                          \
        if (condition) target(result, message);                                                 \
    }

#define ensure(condition) testlib_ensure(condition, "Condition failed: \"" #condition "\"")
#define ensure_ext(condition) ensure(condition)

// Reading

struct InStream;
inline long long stringToLongLong(InStream &in, const std::string &text);
inline double stringToDouble(InStream &in, const std::string &text);

struct InStream {
    TMode mode = _input;

    void init(const char *path, TMode what) {
        mode = what;
        std::ifstream file(path, std::ios::binary);
        if (!file) testlib_state.finish(_fail, std::string("cannot open ") + path);
        content.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }

    [[noreturn]] void end(TResult result, const std::string &message) {
        bool is_reject = result != _ok && result != _points && result < _partially;
        if (mode != _output && is_reject)
            testlib_state.finish(_fail, (mode == _input ? "(input) " : "(answer) ") + message);
        if (!is_reject && mode == _output && !seekEof())
            testlib_state.finish(_pe, "Extra information in the output file");
        testlib_state.finish(result, message);
    }
    TESTLIB_QUITS(end)
    void testlib_ensure(bool condition, const std::string &message) {
        if (!condition) end(_wa, message);
    }
    void ensuref(bool condition, const char *text, ...) {
        TESTLIB_FORMAT(text, message);
        if (!condition) end(_wa, message);
    }

    bool eof() const { return at >= content.size(); }
    bool eoln() const {
        bool is_crlf = !eof() && content[at] == CR && at + 1 < content.size() && content[at + 1] == LF;
        return eof() || content[at] == LF || is_crlf;
    }
    char curChar() const { return eof() ? (char)EOFC : content[at]; }
    char nextChar() { return eof() ? (char)EOFC : content[at++]; }
    char readChar() { return nextChar(); }
    char readChar(char expected) {
        char got = nextChar();
        if (got != expected) end(_pe, "Unexpected character");
        return got;
    }
    char readSpace() { return readChar(SPACE); }
    void skipChar() { nextChar(); }
    void unreadChar(char) {
        if (at > 0) at--;
    }
    void skipBlanks() {
        while (!eof() && isBlanks(content[at])) at++;
    }
    bool seekEof() {
        skipBlanks();
        return eof();
    }
    bool seekEoln() {
        while (!eof() && (content[at] == SPACE || content[at] == TAB)) at++;
        return eoln();
    }
    void nextLine() { readRest(); }
    void readEoln() {
        if (!eoln()) end(_pe, "Expected EOLN");
        nextLine();
    }
    void readEof() {
        if (!eof()) end(_pe, "Expected EOF");
    }

    std::string readWord() {
        skipBlanks();
        if (eof()) end(_unexpected_eof, "Unexpected end of file - token expected");
        size_t start = at;
        while (!eof() && !isBlanks(content[at])) at++;
        return content.substr(start, at - start);
    }
    std::string readString() { return readRest(); }  // empty at the end
    std::string readToken() { return readWord(); }
    std::string readLine() { return readString(); }

// For texts: with a pattern, into a variable, and several.
#define TESTLIB_TEXTS(read, one)                                                                 \
    std::string read(const pattern &expected, const std::string &name = "") {                    \
        return matching(one(), expected, name);                                                  \
    }                                                                                            \
    std::string read(const std::string &expected, const std::string &name = "") {                \
        return matching(one(), pattern(expected), name);                                         \
    }                                                                                            \
    std::string read(const char *expected, const std::string &name = "") {                       \
        return matching(one(), pattern(expected), name);                                         \
    }                                                                                            \
    void read##To(std::string &result) { result = one(); }                                       \
    void read##To(std::string &result, const std::string &expected, const std::string &n = "") { \
        result = read(expected, n);                                                              \
    }                                                                                            \
    std::vector<std::string> read##s(int size, int = 1) {                                        \
        return several<std::string>(size, [&] { return one(); });                                \
    }                                                                                            \
    std::vector<std::string> read##s(int size, const std::string &expected,                      \
                                     const std::string &name = "", int = 1) {                    \
        pattern all(expected);                                                                   \
        return several<std::string>(size, [&] { return matching(one(), all, name); });           \
    }
    TESTLIB_TEXTS(readWord, readWord)
    TESTLIB_TEXTS(readToken, readWord)
    TESTLIB_TEXTS(readString, readString)
    TESTLIB_TEXTS(readLine, readString)

// For numbers: without and with a range, and several.
#define TESTLIB_NUMBERS(T, read, one)                                                             \
    T read() { return one(); }                                                                    \
    T read(T least, T most, const std::string &name = "") { return inside(one(), least, most, name); } \
    std::vector<T> read##s(int size, int = 1) {                                                   \
        return several<T>(size, [&] { return one(); });                                           \
    }                                                                                             \
    std::vector<T> read##s(int size, T least, T most, const std::string &name = "", int = 1) {    \
        return several<T>(size, [&] { return inside(one(), least, most, name); });                \
    }
    TESTLIB_NUMBERS(int, readInt, int32)
    TESTLIB_NUMBERS(int, readInteger, int32)
    TESTLIB_NUMBERS(long long, readLong, int64)
    TESTLIB_NUMBERS(unsigned long long, readUnsignedLong, uint64)
    TESTLIB_NUMBERS(double, readReal, real)
    TESTLIB_NUMBERS(double, readDouble, real)

    double readStrictReal(double least, double most, int min_digits, int max_digits,
                          const std::string &name = "") {
        std::string word = readWord();
        size_t point = word.find('.');
        int digits = point == std::string::npos ? 0 : int(word.size() - point - 1);
        bool is_plain = word.find_first_not_of("-.0123456789") == std::string::npos;
        if (!is_plain || digits < min_digits || digits > max_digits)
            end(_pe, "Expected strict double, but \"" + compress(word) + "\" found");
        return inside(stringToDouble(*this, word), least, most, name);
    }
    double readStrictDouble(double least, double most, int min_digits, int max_digits,
                            const std::string &name = "") {
        return readStrictReal(least, most, min_digits, max_digits, name);
    }

private:
    std::string content;
    size_t at = 0;

    std::string readRest() {
        size_t start = at, stop = std::min(content.find('\n', at), content.size());
        at = std::min(stop + 1, content.size());
        if (stop > start && content[stop - 1] == CR) stop--;
        return content.substr(start, stop - start);
    }
    std::string matching(const std::string &text, const pattern &expected, const std::string &name) {
        if (!expected.matches(text))
            end(_wa, "Token \"" + compress(text) + "\" of " + (name.empty() ? "the text" : name) +
                         " does not match \"" + compress(expected.src()) + "\"");
        return text;
    }
    template <typename T> T inside(T value, T least, T most, const std::string &name) {
        if (!(least <= value && value <= most))
            end(_wa, (name.empty() ? "A number" : name) + " is " + vtos(value) +
                         ", which violates the range [" + vtos(least) + ", " + vtos(most) + "]");
        return value;
    }
    template <typename T, typename F> std::vector<T> several(int size, F one) {
        std::vector<T> items;
        for (int i = 0; i < size; i++) items.push_back(one());
        return items;
    }
    int int32() {
        std::string word = readWord();
        long long value = stringToLongLong(*this, word);
        if (value < INT_MIN || value > INT_MAX)
            end(_pe, "Expected int32, but \"" + compress(word) + "\" found");
        return int(value);
    }
    long long int64() { return stringToLongLong(*this, readWord()); }
    unsigned long long uint64() {
        std::string word = readWord();
        bool is_digits = word.find_first_not_of("0123456789") == std::string::npos;
        errno = 0;
        unsigned long long value = std::strtoull(word.c_str(), nullptr, 10);
        if (!is_digits || errno || (word.size() > 1 && word[0] == '0'))
            end(_pe, "Expected unsigned int64, but \"" + compress(word) + "\" found");
        return value;
    }
    double real() { return stringToDouble(*this, readWord()); }
};

// An integer has no plus sign and no leading zeros, and is not -0.
inline long long stringToLongLong(InStream &in, const std::string &text) {
    std::string digits = text[0] == '-' ? text.substr(1) : text;
    bool is_digits = !digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos;
    bool has_zeros = digits[0] == '0' && (digits.size() > 1 || text[0] == '-');
    errno = 0;
    long long value = std::strtoll(text.c_str(), nullptr, 10);
    if (!is_digits || has_zeros || errno)
        in.quits(_pe, "Expected integer, but \"" + compress(text) + "\" found");
    return value;
}

inline double stringToDouble(InStream &in, const std::string &text) {
    char *stop = nullptr;
    double value = std::strtod(text.c_str(), &stop);
    bool is_complete = !text.empty() && stop == text.c_str() + text.size();
    if (!is_complete || text.find_first_of("xX") != std::string::npos || !std::isfinite(value))
        in.quits(_pe, "Expected double, but \"" + compress(text) + "\" found");
    return value;
}

inline InStream inf, ouf, ans;

TESTLIB_QUITS(ouf.end)

inline void testlib_ensure(bool condition, const std::string &message) {
    if (!condition) testlib_state.finish(_fail, message);
}
inline void ensuref(bool condition, const char *text, ...) {
    TESTLIB_FORMAT(text, message);
    if (!condition) testlib_state.finish(_fail, message);
}

[[noreturn]] inline void quitp(double points, const char *text = "", ...) {
    TESTLIB_FORMAT(text, message);
    ouf.end(_points, vtos(points) + " " + message);
}
[[noreturn]] inline void quitp(double points, const std::string &message) {
    ouf.end(_points, vtos(points) + " " + message);
}
[[noreturn]] inline void quitpi(const std::string &info, const std::string &message = "") {
    ouf.end(_points, info + " " + message);
}

template <typename T>
[[noreturn]] void expectedButFound(TResult result, T expected, T found, const char *text = "", ...) {
    TESTLIB_FORMAT(text, message);
    std::string prefix = message.empty() ? "" : message + ": ";
    ouf.end(result, prefix + "expected '" + vtos(expected) + "', found '" + vtos(found) + "'");
}

// Real numbers

inline bool doubleCompare(double expected, double result, double max_error) {
    max_error += 1e-15;
    if (std::isnan(expected) || std::isnan(result)) return std::isnan(expected) && std::isnan(result);
    if (std::isinf(expected) || std::isinf(result)) return expected == result;
    double difference = std::fabs(result - expected);
    return difference <= max_error || difference <= max_error * std::fabs(expected);
}

inline double doubleDelta(double expected, double result) {
    double absolute = std::fabs(result - expected);
    if (std::fabs(expected) <= 1e-9) return absolute;
    return std::min(absolute, std::fabs(absolute / expected));
}

// Beginning

inline void registerTestlibCmd(int argc, char *argv[]) {
    testlib_state.registered = true;
    if (argc < 4) testlib_state.finish(_fail, "run as: checker INPUT OUTPUT ANSWER");
    inf.init(argv[1], _input);
    ouf.init(argv[2], _output);
    ans.init(argv[3], _answer);
}
inline void registerChecker(const std::string &, int argc, char *argv[]) {
    registerTestlibCmd(argc, argv);
}
inline void disableFinalizeGuard() { testlib_state.finished = true; }
inline void setName(const char *, ...) {}
inline void setTestCase(int number) { testlib_state.test_case = format("test case %d: ", number); }
inline void unsetTestCase() { testlib_state.test_case.clear(); }

#endif
