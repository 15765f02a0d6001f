// Package nft is the door to table inet shunt_edge, on this machine by netlink and on
// replicas through any command that takes nft's language on its stdin. It makes and mends
// the static part (sets, chains, rules), moves elements, and reads back what it did.
package nft
