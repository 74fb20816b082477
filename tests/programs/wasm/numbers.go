// Package numbers gives a compiler work: generics, closures, maps, interfaces, floats and control flow, without an import.
package numbers

type Number interface {
	~int | ~int64 | ~float64
}

type Vector[T Number] []T

func (v Vector[T]) Map(f func(T) T) Vector[T] {
	result := make(Vector[T], 0, len(v))
	for _, x := range v {
		result = append(result, f(x))
	}
	return result
}

func Fold[T Number, R any](v Vector[T], start R, f func(R, T) R) R {
	for _, x := range v {
		start = f(start, x)
	}
	return start
}

func Sum[T Number](v Vector[T]) T {
	return Fold(v, T(0), func(sum, x T) T { return sum + x })
}

type Shape interface {
	Area() float64
	Scale(by float64) Shape
}

type Circle struct{ Radius float64 }
type Rectangle struct{ Width, Height float64 }

func (c Circle) Area() float64             { return 3.141592653589793 * c.Radius * c.Radius }
func (c Circle) Scale(by float64) Shape    { return Circle{c.Radius * by} }
func (r *Rectangle) Area() float64         { return r.Width * r.Height }
func (r *Rectangle) Scale(by float64) Shape { return &Rectangle{r.Width * by, r.Height * by} }

func Largest(shapes []Shape) (largest Shape) {
	for _, shape := range shapes {
		switch s := shape.(type) {
		case nil:
			continue
		case Circle:
			if s.Radius < 0 {
				panic("a negative radius")
			}
		}
		if largest == nil || shape.Area() > largest.Area() {
			largest = shape
		}
	}
	return largest
}

// Primes is a sieve.
func Primes(below int) []int {
	composite := make([]bool, below)
	var primes []int
	for i := 2; i < below; i++ {
		if composite[i] {
			continue
		}
		primes = append(primes, i)
		for j := i * i; j < below; j += i {
			composite[j] = true
		}
	}
	return primes
}

func Words(text string) map[string]int {
	counts := map[string]int{}
	start := -1
	for at, c := range text + " " {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c > 127
		switch {
		case letter && start < 0:
			start = at
		case !letter && start >= 0:
			counts[text[start:at]]++
			start = -1
		}
	}
	return counts
}

type Tree[K Number, V any] struct {
	left, right *Tree[K, V]
	key         K
	value       V
}

func (t *Tree[K, V]) Insert(key K, value V) *Tree[K, V] {
	if t == nil {
		return &Tree[K, V]{key: key, value: value}
	}
	switch {
	case key < t.key:
		t.left = t.left.Insert(key, value)
	case key > t.key:
		t.right = t.right.Insert(key, value)
	default:
		t.value = value
	}
	return t
}

func (t *Tree[K, V]) All(yield func(K, V) bool) bool {
	return t == nil || t.left.All(yield) && yield(t.key, t.value) && t.right.All(yield)
}

func Collatz(n uint64) (steps int) {
	defer func() {
		if recover() != nil {
			steps = -1
		}
	}()
	for ; n != 1; steps++ {
		if n%2 == 0 {
			n /= 2
		} else if n > 1<<62 {
			panic("too large")
		} else {
			n = 3*n + 1
		}
	}
	return steps
}

var squares = Vector[int]{1, 2, 3}.Map(func(x int) int { return x * x })

var Total = Sum(squares) + int(Sum(Vector[float64]{0.5, 1.5})) + len(Primes(100))
