-- The leases of a strategy that supports none: a lease that expires at once, and nothing to return.

local function grant_lease(key, amount)
  return 0, 0
end

local function return_lease(key, lease_id, lent, unused) end
