-- Work that spreads over very many small functions of the interpreter: calls, closures, tables, strings, coroutines, errors.
--
-- usage: lua small_functions.lua [SCALE]      (default 10)
--
-- The output depends on SCALE alone: no iteration order of a hash table, no address and no clock gets into it.

local scale = tonumber((...) or 10)

local function generator(seed)
  local state = seed
  return function(limit)
    state = (state * 1103515245 + 12345) % 2147483648
    return state // 65536 % limit
  end
end

local function recursive_fibonacci(n)
  if n < 2 then return n end
  return recursive_fibonacci(n - 1) + recursive_fibonacci(n - 2)
end

local function bodies(steps)
  local planets = {}
  for i = 1, 5 do
    planets[i] = { x = i * 1.5, y = i * 0.5 - 1, z = 0.25 * i, vx = 0.1 / i, vy = 0.02 * i, vz = -0.01 * i, mass = 1 / i }
  end
  for _ = 1, steps do
    for i = 1, #planets do
      local a = planets[i]
      for j = i + 1, #planets do
        local b = planets[j]
        local dx, dy, dz = a.x - b.x, a.y - b.y, a.z - b.z
        local pull = 0.001 / (dx * dx + dy * dy + dz * dz + 0.01) ^ 1.5
        a.vx, a.vy, a.vz = a.vx - dx * b.mass * pull, a.vy - dy * b.mass * pull, a.vz - dz * b.mass * pull
        b.vx, b.vy, b.vz = b.vx + dx * a.mass * pull, b.vy + dy * a.mass * pull, b.vz + dz * a.mass * pull
      end
    end
    for _, p in ipairs(planets) do
      p.x, p.y, p.z = p.x + 0.01 * p.vx, p.y + 0.01 * p.vy, p.z + 0.01 * p.vz
    end
  end
  local energy = 0
  for _, p in ipairs(planets) do
    energy = energy + 0.5 * p.mass * (p.vx ^ 2 + p.vy ^ 2 + p.vz ^ 2)
  end
  return energy
end

local function sorted_words(count)
  local random, words = generator(7), {}
  for i = 1, count do
    local letters = {}
    for j = 1, 3 + random(6) do letters[j] = string.char(97 + random(26)) end
    words[i] = table.concat(letters)
  end
  table.sort(words, function(a, b)
    if #a ~= #b then return #a < #b end
    return a < b
  end)
  return words
end

local function counted(words)
  local counts = setmetatable({}, { __index = function() return 0 end })
  for _, word in ipairs(words) do
    for pair in word:gmatch("[a-m][n-z]") do counts[pair] = counts[pair] + 1 end
  end
  local pairs_found = {}
  for pair in pairs(counts) do pairs_found[#pairs_found + 1] = pair end
  table.sort(pairs_found, function(a, b)
    if counts[a] ~= counts[b] then return counts[a] > counts[b] end
    return a < b
  end)
  return pairs_found, counts
end

local Account = {}
Account.__index = Account

function Account.new(balance) return setmetatable({ balance = balance }, Account) end

function Account:withdraw(amount)
  if amount > self.balance then error({ missing = amount - self.balance }) end
  self.balance = self.balance - amount
  return self.balance
end

-- Errors unwind the interpreter's C frames by longjmp.
local function refused_withdrawals(count)
  local random, account, refused, missing = generator(3), Account.new(count * 20), 0, 0
  for _ = 1, count do
    local ok, problem = pcall(account.withdraw, account, random(100))
    if not ok then refused, missing = refused + 1, missing + problem.missing end
  end
  return refused, missing
end

local function primes_by_coroutines(count)
  local source = coroutine.wrap(function()
    local n = 2
    while true do coroutine.yield(n) n = n + 1 end
  end)
  local last = 0
  for _ = 1, count do
    local prime, upstream = source(), source
    last = prime
    source = coroutine.wrap(function()
      while true do
        local n = upstream()
        if n % prime ~= 0 then coroutine.yield(n) end
      end
    end)
  end
  return last
end

local function built_string(count)
  local checksum, text = 0, ""
  for i = 1, count do
    text = (text .. string.format("%d:%x;", i, i * 7)):gsub("%d%d%d", "#"):sub(-60)
    checksum = (checksum * 31 + text:byte(1 + i % #text)) % 1000000007
  end
  return checksum, text
end

print("fibonacci", recursive_fibonacci(20 + math.min(scale // 4, 8)))
print("bodies", string.format("%.9f", bodies(1500 * scale)))
local words = sorted_words(2500 * scale)
print("words", #words, words[1], words[#words // 2], words[#words])
local found, counts = counted(words)
print("pairs", #found, found[1], counts[found[1]], found[#found], counts[found[#found]])
print("withdrawals", refused_withdrawals(8000 * scale))
print("prime", primes_by_coroutines(20 + 3 * scale))
print("string", built_string(4000 * scale))
