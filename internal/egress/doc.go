// Package egress keeps VPN lanes up: it tests a provider's endpoints and ranks them, places
// the best on the lanes, and lends, records and replaces where a lane dies. Plans are pure
// (eligible, repair, replace, rebalance, refresh); passes carry them out through the ports.
package egress
