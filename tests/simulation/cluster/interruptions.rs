//! The faults that interrupt a drain, each of which hits one of those that take part in it.

use std::sync::Arc;

use turmoil::Sim;

use super::drains::OPERATOR;
use super::etcd::{Link, Weather};
use super::faults::{Faults, Repair};
use super::process::Process;
use super::world::{World, node_name};

/// Who takes part in a drain, besides etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    Leader,
    Successor,
    Command,
}

/// What passes no more between two machines, as seen from the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    There,
    Back,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interruption {
    /// The process is killed.
    Kill(Party),
    /// The process is frozen, and continues later.
    Freeze(Party),
    /// Requests to etcd get lost, also one that is on the way; or the answers; or both.
    CutFromEtcd(Party, Way),
    /// The machine loses power, and starts again later.
    PowerLoss(Party),
    /// The node is stopped in order (SIGTERM).
    Stop(Party),
    /// The leader does not reach its successor, or not the other way round, or both.
    Apart(Way),
    /// Another command drains the successor.
    DrainSuccessor,
    /// etcd is killed: what is on the way is lost, and it starts again later.
    EtcdKilled,
    /// etcd is frozen, and performs later what it has received.
    EtcdFrozen,
    /// etcd has no leader: a request is lost, refused, or performed later.
    EtcdLeaderless,
    /// etcd performs what it receives, and its answers get lost.
    LostAnswers,
    /// Requests arrive up to 7 s late, so an attempt is performed long after it was given up.
    LateRequests,
}

use Interruption::*;
use Party::*;
use Way::*;

impl Interruption {
    pub const ALL: [Self; 28] = [
        Kill(Leader),
        Kill(Successor),
        Kill(Command),
        Freeze(Leader),
        Freeze(Successor),
        Freeze(Command),
        CutFromEtcd(Leader, There),
        CutFromEtcd(Leader, Back),
        CutFromEtcd(Leader, Both),
        CutFromEtcd(Successor, There),
        CutFromEtcd(Successor, Back),
        CutFromEtcd(Successor, Both),
        CutFromEtcd(Command, There),
        CutFromEtcd(Command, Back),
        CutFromEtcd(Command, Both),
        PowerLoss(Leader),
        PowerLoss(Successor),
        Stop(Leader),
        Stop(Successor),
        Apart(There),
        Apart(Back),
        Apart(Both),
        DrainSuccessor,
        EtcdKilled,
        EtcdFrozen,
        EtcdLeaderless,
        LostAnswers,
        LateRequests,
    ];

    /// Whether it hits the process of one who has nothing more to do at the end of a drain, and ends then.
    pub fn hits_who_leaves(self) -> bool {
        matches!(self, Kill(Leader | Command) | Freeze(Leader | Command) | PowerLoss(Leader) | Stop(Leader))
    }

    /// Whether it concerns only the command, or only what the two nodes say to each other: then the leader hands over as if
    /// nothing happened, or goes on.
    pub fn spares_nodes(self) -> bool {
        matches!(self, Kill(Command) | Freeze(Command) | CutFromEtcd(Command, _) | Apart(_))
    }
}

/// Those that take part in a drain.
pub struct Parties {
    pub leader: usize,
    pub successor: usize,
}

impl Parties {
    /// The process of a party, if it runs.
    fn process(&self, world: &World, party: Party) -> Option<Arc<Process>> {
        let process = match party {
            Leader => world.process(self.leader),
            Successor => world.process(self.successor),
            Command => world.drains.operator(self.leader),
        };
        process.filter(|process| !process.is_over())
    }

    fn link(&self, party: Party) -> usize {
        match party {
            Leader => self.leader,
            Successor => self.successor,
            Command => OPERATOR,
        }
    }

    /// Begins the interruption, which lasts for `duration_ms` if it does not end at once. `Err`: whom it is to hit has ended
    /// already.
    pub fn interrupt(
        &self,
        interruption: Interruption,
        world: &World,
        faults: &mut Faults,
        sim: &mut Sim<'_>,
        duration_ms: u64,
    ) -> Result<Option<Repair>, HasEnded> {
        let etcd = &world.etcd;
        let process = |party| self.process(world, party).ok_or(HasEnded);
        Ok(match interruption {
            Kill(Command) => {
                process(Command)?;
                world.drains.kill(self.leader);
                None
            }
            Kill(party) => {
                process(party)?.kill();
                None
            }
            Freeze(party) => {
                let process = process(party)?;
                process.freeze();
                Some(Repair::Thaw(process))
            }
            CutFromEtcd(party, way) => {
                let node = self.link(party);
                let (loses_requests, loses_answers) = (way != Back, way != There);
                if loses_requests {
                    etcd.lose_requests(Some(node));
                }
                etcd.set_link(node, Link { loses_requests, loses_answers });
                Some(Repair::Link(node))
            }
            PowerLoss(party) => Some(faults.lose_power(sim, process(party)?).ok_or(HasEnded)?),
            Stop(party) => {
                process(party)?.stop();
                None
            }
            Apart(way) => {
                let pair = (node_name(self.leader), node_name(self.successor));
                match way {
                    There => sim.partition_oneway(pair.0.as_str(), pair.1.as_str()),
                    Back => sim.partition_oneway(pair.1.as_str(), pair.0.as_str()),
                    Both => sim.partition(pair.0.as_str(), pair.1.as_str()),
                }
                Some(Repair::Mend(vec![pair]))
            }
            DrainSuccessor => {
                process(Successor)?;
                faults.drain(self.successor, None);
                None
            }
            EtcdKilled => {
                etcd.lose_requests(None);
                etcd.set_weather(Weather { lost_requests_percent: 100, ..etcd.calm() });
                Some(Repair::Weather)
            }
            EtcdFrozen => {
                etcd.freeze(duration_ms);
                None
            }
            EtcdLeaderless => {
                etcd.lose_leader(duration_ms);
                None
            }
            LostAnswers => {
                etcd.set_weather(Weather { lost_answers_percent: 100, ..etcd.calm() });
                Some(Repair::Weather)
            }
            LateRequests => {
                etcd.set_weather(Weather { late_percent: 60, ..etcd.calm() });
                Some(Repair::Weather)
            }
        })
    }
}

/// Whom an interruption is to hit has ended already.
pub struct HasEnded;
