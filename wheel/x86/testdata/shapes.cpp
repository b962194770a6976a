// What a C++ compiler makes of templates, virtual calls, exceptions and the
// standard library.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

struct shape {
	virtual ~shape() = default;
	virtual double area() const = 0;
};

struct square : shape {
	double side;
	explicit square(double s) : side(s) {}
	double area() const override {
		if (side < 0)
			throw std::domain_error("side " + std::to_string(side));
		return side * side;
	}
};

struct disc : shape {
	float radius;
	explicit disc(float r) : radius(r) {}
	double area() const override { return 3.14159 * radius * radius; }
};

double total(const std::vector<std::unique_ptr<shape>> &shapes) {
	try {
		return std::accumulate(shapes.begin(), shapes.end(), 0.0, [](double s, auto &x) { return s + x->area(); });
	} catch (const std::domain_error &e) {
		return -double(std::string(e.what()).size());
	}
}

template <class T> void sorted(std::vector<T> &v) {
	std::stable_sort(v.begin(), v.end());
	v.erase(std::unique(v.begin(), v.end()), v.end());
}
template void sorted(std::vector<std::string> &);
template void sorted(std::vector<unsigned char> &);
template void sorted(std::vector<double> &);

std::map<std::string, int> words(const std::string &text) {
	std::map<std::string, int> n;
	for (size_t i = 0, j; i < text.size(); i = j + 1) {
		j = std::min(text.find(' ', i), text.size());
		n[text.substr(i, j - i)]++;
	}
	return n;
}
