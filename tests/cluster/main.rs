//! Tests of a cluster: several nodes on one store.

mod leadership;
