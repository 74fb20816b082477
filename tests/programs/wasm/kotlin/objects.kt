// A program of objects, for an engine that collects garbage: every function below prints what it
// computed from fixed inputs. The same source runs on the JVM, and prints the same there.

/** Numbers of a linear congruential generator, the same in every run. */
class Numbers(private var state: Long) {
    fun below(limit: Int): Int {
        state = state * 6364136223846793005L + 1442695040888963407L
        return ((state ushr 33) % limit).toInt()
    }
}

// Structs with subtypes, and casts that decide what they are.

sealed interface Expression
data class Number(val value: Long) : Expression
data class Name(val name: String) : Expression
data class Binary(val operator: Char, val left: Expression, val right: Expression) : Expression
data class Let(val name: String, val value: Expression, val body: Expression) : Expression

class SyntaxError(message: String, val position: Int) : Exception(message)

class Parser(private val text: String) {
    private var at = 0

    fun parse(): Expression {
        val parsed = sum()
        if (at != text.length) throw SyntaxError("unexpected '${text[at]}'", at)
        return parsed
    }

    private fun accept(wanted: String): Boolean {
        if (!text.startsWith(wanted, at)) return false
        at += wanted.length
        return true
    }

    private fun sum(): Expression {
        if (accept("let ")) {
            val name = word()
            if (!accept("=")) throw SyntaxError("'=' is missing", at)
            val value = sum()
            if (!accept(" in ")) throw SyntaxError("'in' is missing", at)
            return Let(name, value, sum())
        }
        var left = product()
        while (at < text.length && text[at] in "+-") left = Binary(text[at++], left, product())
        return left
    }

    private fun product(): Expression {
        var left = atom()
        while (at < text.length && text[at] in "*/%") left = Binary(text[at++], left, atom())
        return left
    }

    private fun atom(): Expression = when {
        accept("(") -> sum().also { if (!accept(")")) throw SyntaxError("')' is missing", at) }
        at < text.length && text[at].isDigit() -> {
            val from = at
            while (at < text.length && text[at].isDigit()) at++
            Number(text.substring(from, at).toLong())
        }
        else -> Name(word())
    }

    private fun word(): String {
        val from = at
        while (at < text.length && text[at].isLetter()) at++
        if (at == from) throw SyntaxError("a name is missing", at)
        return text.substring(from, at)
    }
}

fun evaluate(expression: Expression, scope: Map<String, Long>): Long = when (expression) {
    is Number -> expression.value
    is Name -> scope[expression.name] ?: throw NoSuchElementException("no ${expression.name}")
    is Let -> evaluate(expression.body, scope + (expression.name to evaluate(expression.value, scope)))
    is Binary -> {
        val left = evaluate(expression.left, scope)
        val right = evaluate(expression.right, scope)
        when (expression.operator) {
            '+' -> left + right
            '-' -> left - right
            '*' -> left * right
            // Division by zero is a trap in WebAssembly, and not an exception.
            '/' -> if (right == 0L) throw ArithmeticException("$left / 0") else left / right
            else -> if (right == 0L) throw ArithmeticException("$left % 0") else left % right
        }
    }
}

fun expressions() {
    val texts = listOf(
        "1+2*3", "(1+2)*3", "let x=7*6 in x*x-x", "let a=2 in let b=a*a in let c=b*b in c*c-(a+b)", "10/(5-5)",
        "17%5*100000000000", "x+1", "(1+2", "let =3 in 4", "3$4",
    )
    for (text in texts) {
        val result = try {
            val parsed = Parser(text).parse()
            "${evaluate(parsed, emptyMap())} from $parsed"
        } catch (error: SyntaxError) {
            "syntax error at ${error.position}: ${error.message}"
        } catch (error: RuntimeException) {
            "${error::class.simpleName}: ${error.message}"
        }
        println("$text = $result")
    }
}

// Much garbage, next to a tree that stays.

class Node(val left: Node?, val right: Node?) {
    fun count(): Int = 1 + (left?.count() ?: 0) + (right?.count() ?: 0)
}

fun tree(depth: Int): Node = if (depth == 0) Node(null, null) else Node(tree(depth - 1), tree(depth - 1))

fun trees() {
    val kept = tree(15)
    for (depth in 4..14 step 2) {
        val rounds = 1 shl (18 - depth)
        println("$rounds trees of depth $depth have ${(1..rounds).sumOf { tree(depth).count() }} nodes")
    }
    println("the tree that was kept has ${kept.count()} nodes")
}

// Arrays, of numbers and of references.

/** 2 to the power of `exponent` in decimal, of digits in groups of nine. */
fun powerOfTwo(exponent: Int): String {
    var groups = intArrayOf(1)
    repeat(exponent) {
        var carry = 0
        val next = groups.copyOf(groups.size + 1)
        for (at in next.indices) {
            val doubled = next[at] * 2 + carry
            next[at] = doubled % 1_000_000_000
            carry = doubled / 1_000_000_000
        }
        groups = if (next.last() == 0) next.copyOf(groups.size) else next
    }
    return groups.last().toString() + groups.dropLast(1).reversed().joinToString("") { it.toString().padStart(9, '0') }
}

fun arrays() {
    println("2^521 = ${powerOfTwo(521)}")
    val numbers = Numbers(1)
    val bytes = ByteArray(1000) { numbers.below(256).toByte() }
    val characters = CharArray(60) { 'a' + numbers.below(26) }
    val longs = LongArray(5) { numbers.below(1000).toLong() * Int.MAX_VALUE }
    println("${bytes.sum()} ${bytes.count { it < 0 }} ${characters.concatToString()} ${longs.toList()}")
    val board = Array(8) { row -> Array(8) { column -> if ((row + column) % 3 == 0) "#" else "." } }
    board[2] = board[5].reversedArray()
    println(board.joinToString("\n") { it.joinToString("") })
    val words = Array(20000) { CharArray(6) { 'a' + numbers.below(5) }.concatToString() }
    words.sort()
    println("${words.first()} ${words[10000]} ${words.last()} ${words.toSet().size}")
}

// The standard library: maps, regular expressions, sequences that are coroutines.

fun collections() {
    val numbers = Numbers(2)
    val syllables = listOf("ka", "lo", "mi", "ten", "ru")
    val text = (1..5000).joinToString(" ") { (0..numbers.below(3)).joinToString("") { syllables[numbers.below(5)] } }
    val counts = HashMap<String, Int>()
    for (word in text.split(' ')) counts[word] = (counts[word] ?: 0) + 1
    val common = counts.entries.sortedWith(compareByDescending<Map.Entry<String, Int>> { it.value }.thenBy { it.key })
    println("${counts.size} words: ${common.take(8).joinToString { "${it.key} ${it.value}" }}")
    val grouped = counts.keys.groupBy { it.length }.mapValues { (_, words) -> words.min() }
    println(grouped.toList().sortedBy { it.first })
    val found = Regex("(?<first>ka|lo)(mi)+\\b").findAll(text).map { it.value }.groupingBy { it }.eachCount()
    println(found.toList().sortedBy { it.first })
    println(text.take(40).replace(Regex("[aeiou]")) { it.value.uppercase() })

    val primes = sequence {
        val known = mutableListOf<Int>()
        for (candidate in generateSequence(2) { it + 1 }) {
            if (known.takeWhile { it * it <= candidate }.all { candidate % it != 0 }) {
                known += candidate
                yield(candidate)
            }
        }
    }
    println(primes.drop(500).take(5).toList())
    val queue = ArrayDeque<Pair<Int, Int>>()
    queue += 0 to 0
    val steps = LinkedHashMap<Pair<Int, Int>, Int>()
    steps[0 to 0] = 0
    while (queue.isNotEmpty()) {
        val (x, y) = queue.removeFirst()
        for ((dx, dy) in listOf(1 to 2, 2 to 1, -1 to 2, -2 to 1, 1 to -2, 2 to -1, -1 to -2, -2 to -1)) {
            val next = x + dx to y + dy
            if (next.first !in 0..15 || next.second !in 0..15 || next in steps) continue
            steps[next] = steps.getValue(x to y) + 1
            queue += next
        }
    }
    println("a knight reaches ${steps.size} squares, the last ones in ${steps.values.max()}: ${steps.entries.last()}")
}

// Exceptions, which pass through functions of all kinds, and calls of closures.

fun exceptions() {
    val log = StringBuilder()
    fun nested(depth: Int): Int = try {
        if (depth == 0) throw IllegalStateException("at the bottom")
        nested(depth - 1) + 1
    } catch (error: IllegalStateException) {
        log.append(depth).append(' ')
        if (depth < 3) throw IllegalStateException("from $depth", error) else -1
    } finally {
        log.append('f')
    }
    println("${nested(5)} $log")
    val wrong: Any = arrayListOf(1, 2)
    val attempts: List<Pair<String, () -> Any?>> = listOf(
        "cast" to { wrong as Map<*, *> },
        "index" to { (wrong as List<*>)[2] },
        "null" to { (null as String?)!!.length },
        "number" to { "12x".toInt() },
        "safe cast" to { wrong as? String },
        "fine" to { (wrong as List<*>).size },
    )
    for ((name, attempt) in attempts) {
        println("$name: ${runCatching(attempt).fold({ "$it" }, { it::class.simpleName })}")
    }
    var caught = 0
    for (number in 0 until 200_000) {
        try {
            if (number % 7 == 0) throw SyntaxError("seven", number)
        } catch (error: SyntaxError) {
            caught += error.position % 5
        }
    }
    println("caught $caught")
}

// Floating point, and virtual methods of a class hierarchy.

abstract class Shape(val name: String) {
    abstract fun area(): Double
    open fun describe() = "$name of ${(area() * 1000).toLong()}"
}

open class Rectangle(private val width: Double, private val height: Double, name: String = "rectangle") : Shape(name) {
    override fun area() = width * height
}

class Square(side: Double) : Rectangle(side, side, "square") {
    override fun describe() = super.describe() + " with equal sides"
}

class Circle(private val radius: Double) : Shape("circle") {
    override fun area() = kotlin.math.PI * radius * radius
}

fun shapes() {
    val numbers = Numbers(3)
    val shapes = List<Shape>(3000) {
        val size = numbers.below(1000) / 16.0
        when (numbers.below(3)) {
            0 -> Rectangle(size, size / 4)
            1 -> Square(size)
            else -> Circle(size)
        }
    }
    println(shapes.take(4).map { it.describe() })
    println(shapes.groupBy { it.name }.map { (name, same) -> name to (same.sumOf { it.area() } * 100).toLong() }.sortedBy { it.first })
    val squares = shapes.filterIsInstance<Square>()
    println("${squares.size} squares, ${shapes.count { it is Rectangle }} rectangles; ${squares.maxOf { it.area() }}")
}

fun main() {
    expressions()
    trees()
    arrays()
    collections()
    exceptions()
    shapes()
}
