/**
 * Holds resources of a signalbox server: distributed locks, semaphores and concurrency limits.
 *
 * <pre>{@code
 * try (Client client = new Client(); // The server is in SIGNALBOX_URL.
 *         Permit permit = client.acquire(Request.of("reports").maximum(2).waitUpTo(Duration.ofMinutes(1)))) {
 *     work();
 *     permit.check(); // Before each step.
 * } catch (SignalboxException.TimedOut e) {
 *     later();
 * }
 * }</pre>
 *
 * <h2>Losing a permit</h2>
 *
 * A permit is valid for some seconds after the last answer of the server. If no server answers until then, or an
 * administrator revokes it, others may get the resources. Listeners are told, and {@link io.github.signalbox.Permit#check}
 * reads the clock: it is right also in a program that was stopped. Between a check and the work after it a program can be
 * stopped all the same, so send {@link io.github.signalbox.Permit#fence} with each write to a store that cannot tolerate two
 * writers, and let the store refuse lower ones.
 *
 * <h2>Suspended machines</h2>
 *
 * On Linux, a permit's clock keeps running while the machine is suspended. On other systems it may stand still, so that a program
 * takes a permit that was lost meanwhile for valid: let the store check the fencing token there.
 */
package io.github.signalbox;
