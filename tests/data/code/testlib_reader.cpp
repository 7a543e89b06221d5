#include "testlib.h"
using namespace std;
int main(int argc, char* argv[]) {
    registerTestlibCmd(argc, argv);
    string what = inf.readToken();
    if (what == "int") quitf(_ok, "%d", ouf.readInt(-5, 5, "n"));
    if (what == "long") quitf(_ok, "%lld", ouf.readLong());
    if (what == "unsigned") quitf(_ok, "%llu", ouf.readUnsignedLong());
    if (what == "double") quitf(_ok, "%.3f", ouf.readDouble());
    if (what == "strict") quitf(_ok, "%.3f", ouf.readStrictDouble(0, 9, 1, 2));
    if (what == "word") quitf(_ok, "%s", ouf.readWord(inf.readToken()).c_str());
    if (what == "line") {
        string first = ouf.readLine(), second = ouf.readLine();
        quitf(_ok, "%s|%s", first.c_str(), second.c_str());
    }
    if (what == "rest") {
        ouf.readInt();
        quit(_ok, "<" + ouf.readLine() + ">");
    }
    if (what == "lines") {
        int lines = 0, words = 0;
        for (; !ouf.seekEof(); ouf.nextLine(), lines++)
            for (; !ouf.seekEoln(); words++) ouf.readToken();
        quitf(_ok, "%d %d", lines, words);
    }
    if (what == "near") {
        double expected = ans.readDouble(), found = ouf.readDouble();
        string delta = format("%.0e", doubleDelta(expected, found));
        quit(doubleCompare(expected, found, 1e-6) ? _ok : _wa, delta);
    }
    if (what == "ensure") {
        ouf.ensuref(ouf.readInt() == 1, "not %d", 1);
        ensure(ans.readInt() == 1);
        quit(_ok, "");
    }
    if (what == "points") quitp(0.5, "half");
    if (what == "partial") quitf(_pc(50), "half");
    if (what == "answer") ans.quitf(_wa, "the jury is wrong");
    if (what == "texts") {
        vector<string> parts = split("a,,b", ','), words = tokenize(" x  y ", ' ');
        string all = join(parts, "-") + upperCase("q") + lowerCase("Q") + trim(" t ") + vtos(2.5);
        all += join(words, '+');
        quitif(all != "a--bQqt2.5x+y", _fail, "%s", all.c_str());
        setTestCase(4);
        expectedButFound(_wa, 1, 2, "%d%s", 3, englishEnding(3).c_str());
    }
    quitf(_fail, "unknown");
}
