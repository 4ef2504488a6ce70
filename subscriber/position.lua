-- Tells how far a group has come. It is one step, so that both halves of the answer are
-- about the same group, and a script so that a client that reads from replicas asks the
-- master.
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer that asks
-- Returns  {ID of the last entry that was delivered, lowest pending ID or '', number of
--          pending entries, how many of them are pending for the consumer}
-- Errors   NOGROUP
local key, group, me = KEYS[1], ARGV[1], ARGV[2]
local pending = redis.call('XPENDING', key, group) -- NOGROUP also where the stream is missing
local last = '0-0'
for _, info in ipairs(redis.call('XINFO', 'GROUPS', key)) do
  local fields = {}
  for i = 1, #info, 2 do fields[info[i]] = info[i + 1] end
  if fields.name == group then last = fields['last-delivered-id'] end
end
local mine = 0
for _, consumer in ipairs(pending[4] or {}) do
  if consumer[1] == me then mine = tonumber(consumer[2]) end
end
return {last, pending[2] or '', pending[1], mine}
