"""How a request to forget is carried out.

`filing`: somebody files it, and perhaps approves it; `four_eyes` says who may. `samples`: if it names samples and not
whole clients, the clients' workers confirm first that they have them. `planner`: the cheapest method that applies is
chosen. `fence`: in one decision nothing that was made with the leavers counts any more, and they are shut out; `cuts`
says what becomes of each cohort. Then each cohort goes through its stages (`stages` has their types): `unlearning`, if
the method is approximate; `recovery`, until it has the round again that it had; `audit`, if the request asks for one.
`review` sees how far all of them are, and `fallback` what to do with those where a method failed. `completion`: when
all are done, the coordinator purges what is left of the leavers, and the request ends with its certificate. `callbacks`
announces each change, and `status` has the table of who may move a request from one status to another.
"""
