"""The synchronisation protocol as pure state machines.

`spec`                 what a collective is (kind, operator, element type, parts)
`payload`              what is carried: an array, or a ghost that only counts contributions
`messages`             everything that crosses between machines
`policy`               a versioned plan with what each site derives from it
`order`                which waiting chunk a link takes next, and how far contributions run ahead
`site_machine`         one site: contributions in, chunks out, results delivered
`coordinator_machine`  the barrier: all sites ready, then one release
"""
