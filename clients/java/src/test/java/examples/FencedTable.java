package examples;

import io.github.signalbox.Client;
import io.github.signalbox.Permit;
import io.github.signalbox.Request;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;

/** A table refuses a writer that was overtaken, however late it comes: it keeps the greatest fence that it has seen. */
public final class FencedTable {
    private FencedTable() {}

    /** Writes a report. Comparing and writing are one statement, so nothing comes between. */
    static boolean write(Connection database, String text, long fence) throws SQLException {
        String sql = "UPDATE report SET text = ?, fence = ? WHERE id = 1 AND fence <= ?";
        try (PreparedStatement update = database.prepareStatement(sql)) {
            update.setString(1, text);
            update.setLong(2, fence);
            update.setLong(3, fence);
            return update.executeUpdate() == 1;
        }
    }

    public static void main(String[] arguments) throws SQLException, InterruptedException {
        Request report = Request.of("report").maximum(1).waitUpTo(Duration.ofMinutes(1));
        try (Client client = new Client(); Connection database = DriverManager.getConnection("jdbc:h2:mem:")) {
            try (Statement create = database.createStatement()) {
                create.execute("CREATE TABLE report (id INT PRIMARY KEY, text VARCHAR, fence BIGINT NOT NULL)");
                create.execute("INSERT INTO report VALUES (1, 'none', 0)");
            }
            Permit stopped = client.acquire(report);
            stopped.release(); // Stands for its loss.
            try (Permit successor = client.acquire(report)) {
                System.out.println("the successor has written: " + write(database, "new", successor.fence()));
                System.out.println("the stopped writer has written: " + write(database, "old", stopped.fence()));
            }
        }
    }
}
