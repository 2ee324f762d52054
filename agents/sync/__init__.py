"""The synchronisation protocol as pure state machines.

`spec`                 what a collective is (kind, operator, element type, parts)
`payload`              what is carried: an array, or a ghost that only counts contributions
`messages`             everything that crosses between machines
`policy`               a versioned plan with what each site derives from it
`order`                which waiting chunk a link takes next, and how far contributions run ahead
                       (a plan may change inside a collective: see `CoordinatorMachine.replan_within`)
`site_machine`         one site: contributions in, chunks out, results delivered
`site_transfers`, `transfer_coordinator`   the same for schedulers that decide per transfer
`coordinator_machine`  the barrier: all sites ready, then one release
"""
