"""The frozen records that are passed between the stages. They compute nothing but properties of themselves."""
