/* Drives SQLite: a large C library whose functions are of every size, from varint decoding to the query planner.

   usage: sqlite_workload [ROWS]      (default 300000)

   Builds a small shop in an in-memory database (customers, products, orders), indexes it, changes and deletes a part
   of it, and prints the results of queries that join, group, sort and search. The output depends on ROWS alone. */

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "sqlite3.h"

static uint64_t random_state = 0x9e3779b97f4a7c15u;

/* xorshift64: the same numbers in every run. */
static uint32_t random_below(uint32_t limit) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 32) % limit);
}

static void require(sqlite3 *database, int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "sqlite_workload: %s: %s\n", what, sqlite3_errmsg(database));
        exit(1);
    }
}

static void run(sqlite3 *database, const char *sql) {
    require(database, sqlite3_exec(database, sql, NULL, NULL, NULL) == SQLITE_OK, sql);
}

static sqlite3_stmt *prepare(sqlite3 *database, const char *sql) {
    sqlite3_stmt *statement = NULL;
    require(database, sqlite3_prepare_v2(database, sql, -1, &statement, NULL) == SQLITE_OK, sql);
    return statement;
}

static void step_insert(sqlite3 *database, sqlite3_stmt *statement) {
    require(database, sqlite3_step(statement) == SQLITE_DONE, "insert");
    sqlite3_reset(statement);
}

static void fill(sqlite3 *database, uint32_t rows) {
    const uint32_t customers = rows / 30 + 10, products = 500;
    char text[64];

    run(database, "CREATE TABLE customer(id INTEGER PRIMARY KEY, name TEXT NOT NULL, city INTEGER NOT NULL);"
                  "CREATE TABLE product(id INTEGER PRIMARY KEY, title TEXT NOT NULL, price REAL NOT NULL);"
                  "CREATE TABLE purchase(id INTEGER PRIMARY KEY, customer INTEGER NOT NULL, product INTEGER NOT NULL,"
                  "                      amount INTEGER NOT NULL, day INTEGER NOT NULL, note TEXT);"
                  "BEGIN");

    sqlite3_stmt *insert = prepare(database, "INSERT INTO customer(id, name, city) VALUES(?, ?, ?)");
    for (uint32_t i = 1; i <= customers; i++) {
        snprintf(text, sizeof text, "customer %08" PRIx32, random_below(UINT32_MAX));
        sqlite3_bind_int64(insert, 1, i);
        sqlite3_bind_text(insert, 2, text, -1, SQLITE_TRANSIENT);
        sqlite3_bind_int64(insert, 3, random_below(40));
        step_insert(database, insert);
    }
    sqlite3_finalize(insert);

    insert = prepare(database, "INSERT INTO product(id, title, price) VALUES(?, ?, ?)");
    for (uint32_t i = 1; i <= products; i++) {
        snprintf(text, sizeof text, "product %" PRIu32, i);
        sqlite3_bind_int64(insert, 1, i);
        sqlite3_bind_text(insert, 2, text, -1, SQLITE_TRANSIENT);
        sqlite3_bind_double(insert, 3, (double)(1 + random_below(10000)) / 4.0);
        step_insert(database, insert);
    }
    sqlite3_finalize(insert);

    insert = prepare(database, "INSERT INTO purchase(customer, product, amount, day, note) VALUES(?, ?, ?, ?, ?)");
    for (uint32_t i = 0; i < rows; i++) {
        sqlite3_bind_int64(insert, 1, 1 + random_below(customers));
        sqlite3_bind_int64(insert, 2, 1 + random_below(products));
        sqlite3_bind_int64(insert, 3, 1 + random_below(9));
        sqlite3_bind_int64(insert, 4, random_below(365));
        if (i % 5 == 0) {
            snprintf(text, sizeof text, "note %" PRIu32, random_below(1000));
            sqlite3_bind_text(insert, 5, text, -1, SQLITE_TRANSIENT);
        } else {
            sqlite3_bind_null(insert, 5);
        }
        step_insert(database, insert);
    }
    sqlite3_finalize(insert);
    run(database, "COMMIT");
}

/* Prints every row of a query, columns separated by bars. */
static void print_query(sqlite3 *database, const char *title, const char *sql) {
    sqlite3_stmt *statement = prepare(database, sql);
    int state;

    printf("-- %s\n", title);
    while ((state = sqlite3_step(statement)) == SQLITE_ROW) {
        for (int column = 0; column < sqlite3_column_count(statement); column++) {
            const unsigned char *value = sqlite3_column_text(statement, column);
            printf("%s%s", column ? "|" : "", value ? (const char *)value : "null");
        }
        putchar('\n');
    }
    require(database, state == SQLITE_DONE, title);
    sqlite3_finalize(statement);
}

/* Many short statements: what an application with an object mapper does. */
static void look_up(sqlite3 *database, uint32_t count, uint32_t customers) {
    sqlite3_stmt *select = prepare(database, "SELECT count(*), sum(amount) FROM purchase WHERE customer = ?");
    uint64_t purchases = 0, amount = 0;

    for (uint32_t i = 0; i < count; i++) {
        sqlite3_bind_int64(select, 1, 1 + random_below(customers));
        require(database, sqlite3_step(select) == SQLITE_ROW, "look-up");
        purchases += (uint64_t)sqlite3_column_int64(select, 0);
        amount += (uint64_t)sqlite3_column_int64(select, 1);
        sqlite3_reset(select);
    }
    sqlite3_finalize(select);
    printf("-- look-ups\n%" PRIu64 "|%" PRIu64 "\n", purchases, amount);
}

int main(int argc, char **argv) {
    const uint32_t rows = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 300000;
    sqlite3 *database = NULL;

    require(database, sqlite3_open(":memory:", &database) == SQLITE_OK, "open");
    fill(database, rows);
    run(database, "CREATE INDEX purchase_customer ON purchase(customer);"
                  "CREATE INDEX purchase_day_product ON purchase(day, product);"
                  "CREATE UNIQUE INDEX product_title ON product(title)");
    look_up(database, rows / 10, rows / 30 + 10);
    print_query(database, "best sellers",
                "SELECT p.title, sum(o.amount) AS pieces, round(sum(o.amount * p.price), 2) "
                "FROM purchase o JOIN product p ON p.id = o.product GROUP BY p.id ORDER BY pieces DESC, p.id LIMIT 5");
    print_query(database, "turnover by city",
                "SELECT c.city, count(DISTINCT c.id), round(sum(o.amount * p.price), 2) AS turnover "
                "FROM customer c JOIN purchase o ON o.customer = c.id JOIN product p ON p.id = o.product "
                "GROUP BY c.city ORDER BY turnover DESC LIMIT 5");
    print_query(database, "running total of the first days",
                "SELECT day, sum(pieces) OVER (ORDER BY day) "
                "FROM (SELECT day, sum(amount) AS pieces FROM purchase WHERE day < 6 GROUP BY day)");
    print_query(database, "notes that match", "SELECT count(*), min(note), max(note) FROM purchase WHERE note LIKE '%77%'");
    run(database, "UPDATE purchase SET amount = amount + 1 WHERE day % 7 = 0;"
                  "DELETE FROM purchase WHERE day IN (SELECT day FROM purchase GROUP BY day ORDER BY sum(amount), day LIMIT 20)");
    print_query(database, "after changes", "SELECT count(*), sum(amount), min(day), max(day), total(length(note)) FROM purchase");
    print_query(database, "integrity", "PRAGMA integrity_check");
    require(database, sqlite3_close(database) == SQLITE_OK, "close");
    return 0;
}
