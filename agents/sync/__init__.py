"""The synchronisation protocol as pure state machines.

`spec`                 what a collective is (kind, operator, element type, parts)
`payload`              what is carried: an array, or a ghost that only counts contributions
`messages`             everything that crosses between machines
`policy`               a versioned plan with what each site derives from it
`order`                which waiting chunk a link takes next, and how far contributions run ahead
`site_machine`         one site: contributions in, chunks out, results delivered; `collective` is one of them
`coordinator_machine`  the barrier: all sites ready, then one release; a plan for the next one, or for the
                       rest of one that runs
`site_transfers`, `transfer_coordinator`   the same where a scheduler decides per transfer
`forecast`             how long an all-reduce takes under a policy, in a simple model of the links
"""
