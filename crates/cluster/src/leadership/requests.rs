//! The transactions of a node.

use super::view::View;
use super::{Ending, Joining, Leaving, Machine, Namesake, Request, Settings, Standby, State};
use crate::coordinator::{Compare, Operation, Revision, Transaction};
use crate::keys::{Format, Heartbeat, LAYOUT, Leadership, LeadershipState, Marker, encode};

impl Machine {
    pub(super) fn transaction(&self, request: Request) -> Result<Transaction, Ending> {
        let keys = &self.settings.keys;
        let reads = || View::reads(keys, &self.settings.name, self.watched());
        Ok(match (request, &self.state) {
            (Request::Join, State::Joining(Joining { seen: Some(seen), .. })) => Transaction {
                compare: vec![
                    modified(keys.format(), seen.format.modified),
                    modified(self.node_key(), seen.namesake.as_ref().map_or(0, Namesake::node_modified)),
                    modified(
                        self.heartbeat_key(),
                        seen.namesake.as_ref().map_or(0, Namesake::heartbeat_modified),
                    ),
                ],
                then: with(vec![put(self.node_key(), &self.settings.node), self.give_heartbeat()], reads()),
                otherwise: reads(),
            },
            (Request::Look, State::Standby(standby)) => Transaction {
                compare: vec![modified(self.node_key(), standby.node_modified)],
                then: with(vec![self.give_heartbeat()], reads()),
                otherwise: reads(),
            },
            (Request::TakeOver, State::Standby(standby)) => self.take_over(standby)?,
            (Request::Renew(_), State::Leading(leading)) => Transaction {
                compare: vec![
                    modified(keys.leadership(), leading.leadership.modified),
                    modified(self.heartbeat_key(), leading.heartbeat_modified),
                ],
                then: vec![self.give_heartbeat(), read(self.drain_key())],
                otherwise: vec![read(keys.leadership()), read(self.heartbeat_key())],
            },
            (Request::Release, State::Leaving(Leaving { holding: Some(leadership), successor, .. })) => {
                let released = Leadership {
                    state: LeadershipState::Released,
                    successor: successor.clone(),
                    ..leadership.value.clone()
                };
                Transaction {
                    compare: vec![modified(keys.leadership(), leadership.modified)],
                    then: vec![put(keys.leadership(), &released)],
                    otherwise: vec![],
                }
            }
            // By value: the revision is not known if the attempt to join was not answered. Another run has another value.
            (Request::Leave, _) => Transaction {
                compare: vec![Compare::Value { key: self.node_key(), is: encode(&self.settings.node) }],
                then: vec![
                    Operation::Delete { key: self.node_key() },
                    Operation::Delete { key: self.heartbeat_key() },
                    Operation::Delete { key: self.drain_key() },
                    read(keys.leadership()),
                ],
                otherwise: vec![read(keys.leadership())],
            },
            // `Read`; the other requests are made in the states above.
            _ => Transaction {
                compare: vec![modified(keys.format(), 0)],
                then: with(vec![put(keys.format(), &self.format())], reads()),
                otherwise: reads(),
            },
        })
    }

    fn take_over(&self, standby: &Standby) -> Result<Transaction, Ending> {
        let Settings { keys, name, .. } = &self.settings;
        let epoch = standby.observation.next_epoch().ok_or(Ending::EpochsExhausted)?;
        // The format as well: a node does not take over records that it cannot read, and writes what all others can read.
        let mut compare = vec![
            modified(keys.format(), standby.format.modified),
            modified(self.node_key(), standby.node_modified),
            modified(keys.leadership(), standby.observation.leadership_modified()),
        ];
        if let (Some(leader), Some(at)) =
            (standby.observation.leader(), standby.observation.heartbeat_modified())
        {
            compare.push(modified(keys.heartbeat(leader), at));
        }
        let then = vec![
            put(keys.leadership(), &self.leadership(epoch)),
            put(keys.marker(), &Marker { epoch, commit: 0 }),
            self.give_heartbeat(),
        ];
        Ok(Transaction { compare, then, otherwise: View::reads(keys, name, self.watched()) })
    }

    /// What the leadership key says while this run leads in an epoch.
    pub(super) fn leadership(&self, epoch: u32) -> Leadership {
        Leadership {
            epoch,
            node: self.settings.name.clone(),
            incarnation: self.settings.node.incarnation.clone(),
            state: LeadershipState::Held,
            successor: None,
        }
    }

    /// The node that is read besides this one.
    pub(super) fn watched(&self) -> Option<&str> {
        let observation = match &self.state {
            State::Joining(joining) => &joining.seen.as_ref()?.observation,
            State::Standby(standby) => &standby.observation,
            _ => return None,
        };
        observation.leader().filter(|leader| *leader != self.settings.name)
    }

    fn node_key(&self) -> Vec<u8> {
        self.settings.keys.node(&self.settings.name)
    }

    fn heartbeat_key(&self) -> Vec<u8> {
        self.settings.keys.heartbeat(&self.settings.name)
    }

    fn drain_key(&self) -> Vec<u8> {
        self.settings.keys.drain(&self.settings.name)
    }

    fn give_heartbeat(&self) -> Operation {
        let heartbeat = Heartbeat {
            incarnation: self.settings.node.incarnation.clone(),
            count: self.heartbeats + 1,
            relays_closed_below: self.relayed.closed_below,
            relays: self.relayed.connections,
        };
        put(self.heartbeat_key(), &heartbeat)
    }

    fn format(&self) -> Format {
        Format {
            layout: LAYOUT,
            record_format: self.settings.node.record_format,
            renew_deadline_ms: self.renew_deadline_ms(),
        }
    }

    pub(super) fn renew_deadline_ms(&self) -> u64 {
        u64::try_from(self.settings.timing.renew_deadline().as_millis()).unwrap_or(u64::MAX)
    }
}

fn modified(key: Vec<u8>, at: Revision) -> Compare {
    Compare::Modified { key, at }
}

fn put<T: serde::Serialize>(key: Vec<u8>, value: &T) -> Operation {
    Operation::Put { key, value: encode(value) }
}

fn read(key: Vec<u8>) -> Operation {
    Operation::Read { key }
}

fn with(mut writes: Vec<Operation>, reads: Vec<Operation>) -> Vec<Operation> {
    writes.extend(reads);
    writes
}
