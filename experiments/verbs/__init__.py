"""What hdpsim can be asked, one function a verb; the commands print what these return."""
